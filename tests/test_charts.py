"""Every chart is drawn from hard inputs: labels there, legible, and none over another."""

from dataclasses import replace
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from kernelbook import chart_style, charts
from kernelbook.work import MACHINES, Work

CAPTION = "NVIDIA H200, 2026-11-29, torch 2.11.0, triton 3.6.0 (recorded)"
H200 = MACHINES["H200"]
MEASURED = replace(H200, hbm_bytes_per_s=4.28e12, flops_per_s={"bf16": 750e12}, measured=True)


def event(name, start, duration, stream=7):
    return SimpleNamespace(name=name, start_us=start, duration_us=duration, stream=stream)


def crowded_roofline():
    attention = Work(2**37, 2**26, 2**25)
    points = [
        charts.Point("copy", Work(2**28, 2**30, 2**30), 500e-6),
        charts.Point("RMSNorm + residual", Work(2**29, 2**30, 2**30), 510e-6),
        charts.Point("SwiGLU", Work(2**29, 2**30, 2**29), 390e-6),
        charts.Point("naive attention, n=4k", Work(2**37, 2**31, 2**31), 3e-3),
        charts.Point("tiled attention, n=4k", attention, 250e-6),
        charts.Point("tiled attention, n=4k", attention, 350e-6, "yours"),
        charts.Point("cuDNN attention, n=4k", attention, 230e-6),
        charts.Point("matmul 8192", Work(2 * 8192**3, 2**28, 2**27)),
    ]
    return charts.roofline(MEASURED, points, "bf16", H200, "Where kernels stand", CAPTION)


STEP = {"attention": 8.0, "MLP": 5.1, "norms": 1.0, "QKV and output projections": 3.0, "head": 0.2}
NAMES = ["void at::elementwise<int, 4>(x)", "gemm_bf16_" * 6, "softmax", "rms", "a", "b", "c"]
EAGER = [event(NAMES[i % 7], 12.0 * i, 4 + i % 5) for i in range(30)]
GRAPH = [event(NAMES[i % 7], 7.0 * i, 6) for i in range(20)] + [event("nccl", 30, 9, 13)]
SIZES = [1024, 2048, 4096, 8192, 16384]
CURVES = {
    name: [(n, n * n * rate, n * n * rate * 0.9, n * n * rate * 1.2) for n in SIZES]
    for name, rate in [("cuDNN SDPA", 1e-5), ("this course", 1.03e-5), ("FA2 SDPA", 1.9e-5)]
}
LAUNCHES = {"eager": (7.4, 7.0, 8.5), "Triton": (15.0, 14.0, 17.0), "graph node": 0.97}

CHARTS = {
    "roofline": crowded_roofline,
    "bare roofline": lambda: charts.roofline(H200, caption=CAPTION),
    "amdahl": lambda: charts.amdahl_bars(
        STEP, "attention", 4.0, STEP | {"attention": 2.2}, title="Attention", caption=CAPTION
    ),
    "amdahl, predicted only": lambda: charts.amdahl_bars(STEP, "MLP", 2.0, caption=CAPTION),
    "timelines": lambda: charts.timeline({"eager": EAGER, "graph": GRAPH}, "A step", CAPTION),
    "timeline": lambda: charts.timeline(SimpleNamespace(kernels=EAGER), caption=CAPTION),
    "lines": lambda: charts.lines(
        CURVES,
        "sequence length (tokens)",
        "time (µs)",
        yours={"this course": [(n, n * n * 2e-5) for n in SIZES]},
        reference=(100, "budget"),
        title="Prefill",
        caption=CAPTION,
    ),
    "close lines": lambda: charts.lines(
        {name: [(n, 500 + i) for n in SIZES] for i, name in enumerate("abcdefg")},
        "sequence length (tokens)",
        "TFLOP/s",
        logy=False,
        caption=CAPTION,
    ),
    "bars": lambda: charts.bars(LAUNCHES, "µs a launch", title="Launches", caption=CAPTION),
    "bars, yours": lambda: charts.bars(
        LAUNCHES, "µs a launch", yours={"eager": 9.0}, reference=(10, "10 µs"), caption=CAPTION
    ),
    "ratios": lambda: charts.heatmap(
        [[0.7, 1, 1.3], [1.1, np.nan, 41]],
        [1, 64],
        ["2k", "8k", "32k"],
        "context (tokens)",
        "batch",
        "speedup",
        ratio=True,
        caption=CAPTION,
    ),
    "times": lambda: charts.heatmap(
        [[7, 10], [220, 4100]],
        ["eager", "graph"],
        ["1B", "8B"],
        "model",
        "mode",
        "µs",
        caption=CAPTION,
    ),
}


@pytest.fixture(scope="module", params=CHARTS)
def figure(request):
    figure = CHARTS[request.param]()
    yield figure
    plt.close(figure)


def test_labeled_legible_and_apart(figure):
    (axes,) = figure.axes
    assert axes.get_xlabel()
    assert axes.get_ylabel() or len(axes.get_yticklabels()) >= 1
    texts = chart_style.texts(figure)
    assert CAPTION in [text.get_text() for text in texts]
    assert min(text.get_fontsize() for text in texts) >= 10
    assert chart_style.overlaps(figure) == []


def test_nothing_is_cut_off(figure):
    width, height = figure.canvas.get_width_height()
    for text in chart_style.texts(figure):
        box = plt.Text.get_window_extent(text)
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert inside, f"{text.get_text()!r} is cut off"


def test_the_overlap_test_sees_overlaps():
    figure, axes = chart_style.canvas(2, "caption")
    axes.text(0.5, 0.5, "one")
    axes.text(0.51, 0.5, "two")
    assert ("one", "two") in chart_style.overlaps(figure)
    plt.close(figure)


def test_roofline_draws_roof_and_rates():
    point = charts.Point("copy", Work(10**9, 10**9, 10**9), seconds=1e-3)
    figure = charts.roofline(H200, [point])
    roof = figure.axes[0].lines[0].get_xydata()
    assert roof[0] == pytest.approx([0.1, 0.48]) and roof[-1][1] == pytest.approx(989)
    lines = [line.get_xydata() for line in figure.axes[0].lines]
    markers = [tuple(points[0]) for points in lines if len(points) == 1]
    assert (0.5, 2.4) in markers and (0.5, 1.0) in markers
    assert any("42% of roof" in text.get_text() for text in figure.axes[0].texts)
    plt.close(figure)


def test_amdahl_bars_state_predicted_and_measured():
    figure = charts.amdahl_bars({"a": 5, "b": 5}, "a", 5.0, {"a": 2, "b": 5})
    note = figure.axes[0].texts[0].get_text()
    assert note == "a (50%) 5x faster: predicted 1.67x, measured 1.43x, limit 2x"
    with pytest.raises(ValueError, match="not a part of the step: a, b"):
        charts.amdahl_bars({"a": 5, "b": 5}, "c", 2.0)
    plt.close(figure)


def test_busy_share_counts_overlapping_streams_once():
    figure = charts.timeline([event("a", 0, 10), event("b", 5, 10, 8), event("c", 20, 5)])
    assert "busy 80%" in figure.axes[0].texts[0].get_text()
    with pytest.raises(ValueError, match="holds no kernel"):
        charts.timeline([])
    plt.close(figure)


def test_series_of_records():
    rows = [
        {"variant": "a", "shape": {"n": n}, "median_us": n, "p10_us": n - 1, "p90_us": n + 1}
        for n in (2, 1)
    ] + [{"variant": "b", "shape": {"n": 1}, "median_us": 5}]
    expected = {"a": [(1, 10, 0, 20), (2, 20, 10, 30)], "b": [(1, 50, 50, 50)]}
    assert charts.series(rows, "n", scale=10) == expected
    assert charts.series(rows, lambda row: row["shape"]["n"], scale=10) == expected


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="2 rows and 1 columns"):
        charts.heatmap([[1]], ["a", "b"], ["c"], "x", "y", "µs")
    with pytest.raises(ValueError, match="no points"):
        charts.lines({"a": []}, "n", "µs")


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0"),
        (0.97123, "0.971"),
        (4276.3, "4,280"),
        (1e6, "1,000,000"),
        (15.0, "15"),
        (999.9, "1,000"),
    ],
)
def test_numbers_are_written_without_exponents(value, text):
    assert chart_style.number(value) == text


def test_spread_keeps_order_gap_and_limits():
    placed = chart_style.spread([100, 99, 98, 10], 20, 0, 101)
    assert placed == [101, 81, 61, 10]

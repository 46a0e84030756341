"""The roofline: what a machine allows at each arithmetic intensity, and what was reached.

Source: S. Williams, A. Waterman, D. Patterson, Roofline, CACM 2009.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from kernelbook.chart_style import (
    BLACK,
    GRAY,
    RECORDED,
    YOURS,
    canvas,
    number,
    place_labels,
    styled,
)
from kernelbook.work import Machine, Work, attainable, short


@dataclass(frozen=True)
class Point:
    """A computation on the roofline: measured where `seconds` is given, else predicted.

    source: "recorded" (shipped measurements) or "yours".
    """

    label: str
    work: Work
    seconds: float | None = None
    source: str = "recorded"

    @property
    def rate(self) -> float:
        """TFLOP/s as measured."""
        return self.work.flops / self.seconds / 1e12


def _roof_line(axes, machine, dtype, limits, **style):
    intensities = np.geomspace(*limits, 200)
    rates = [attainable(i, machine, dtype) / 1e12 for i in intensities]
    axes.plot(intensities, rates, **style)
    return list(zip(intensities, rates, strict=True))


def _draw_points(axes, machine, dtype, points) -> list:
    """Draw predicted and measured rates; returns every (x, y) that a label must not cover."""
    covered = []
    for point in points:
        color, marker = (YOURS, "D") if point.source == "yours" else (RECORDED, "o")
        x, roof = point.work.intensity, attainable(point.work.intensity, machine, dtype) / 1e12
        axes.plot(x, roof, marker, mfc="white", mec=color, ms=8, zorder=4)
        rate = roof if point.seconds is None else point.rate
        if point.seconds is not None:
            axes.plot([x, x], [rate, roof], ":", color=color, lw=1.2)
            axes.plot(x, rate, marker, color=color, ms=8, zorder=5)
        covered += [(x, y) for y in np.geomspace(rate, roof, 6)]
    return covered


def _point_labels(machine, dtype, points) -> list:
    """One (x, y, text, color) for each name: a reader's point shares the recorded one's label."""
    labels = []
    for name in dict.fromkeys(point.label for point in points):
        named = [point for point in points if point.label == name]
        first = named[0]
        roofs = [attainable(point.work.intensity, machine, dtype) / 1e12 for point in named]
        shares = [
            f"{'yours ' if point.source == 'yours' else ''}{point.rate / roof:.0%}"
            for point, roof in zip(named, roofs, strict=True)
            if point.seconds is not None
        ]
        y = roofs[0] if first.seconds is None else first.rate
        color = YOURS if first.source == "yours" else RECORDED
        text = f"{name} ({', '.join(shares)} of roof)" if shares else name
        labels.append((first.work.intensity, y, text, color))
    return labels


def _marker_legend(axes, points):
    sources = {point.source for point in points if point.seconds is not None}
    if points:
        axes.plot([], [], "o", mfc="white", mec=GRAY, ms=8, ls="", label="predicted: at the roof")
    for source, marker, color in [("recorded", "o", RECORDED), ("yours", "D", YOURS)]:
        if source in sources:
            axes.plot([], [], marker, color=color, ms=8, ls="", label=f"measured: {source}")
    if points:
        axes.legend(loc="upper left", bbox_to_anchor=(-0.01, 1.0), handletextpad=0.2)


@styled
def roofline(
    machine: Machine,
    points: Iterable[Point] = (),
    dtype="bf16",
    beside: Machine | None = None,
    title: str = "",
    caption: str = "",
) -> Figure:
    """Attainable TFLOP/s over arithmetic intensity, with predicted and measured points.

    machine  whose ceilings are the solid roof (datasheet or measured).
    beside   another set of ceilings, dashed (the datasheet's under the measured ones).
    """
    points, dtype = list(points), short(dtype)
    ridge, peak = machine.ridge(dtype), machine.flops_per_s[dtype] / 1e12
    found = [point.work.intensity for point in points]
    left, right = min([0.1, *(i / 3 for i in found)]), max([ridge * 20, *(i * 8 for i in found)])
    figure, axes = canvas(4.2, caption, title=title)
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    axes.grid(True, which="major")
    roof = _roof_line(axes, machine, dtype, (left, right), color=BLACK, lw=2)
    if beside:
        roof += _roof_line(axes, beside, dtype, (left, right), color=GRAY, lw=1.2, ls="--")
    covered = _draw_points(axes, machine, dtype, points)
    labels = _point_labels(machine, dtype, points)
    lowest = min([attainable(left, machine, dtype) / 1e12, *(y / 2 for _, y in covered)])
    axes.set_ylim(lowest, peak * (12 if points else 4))
    axes.axvline(ridge, color=GRAY, lw=0.8, ls=":")
    low = (lowest * (peak / lowest) ** 0.04, lowest * (peak / lowest) ** 0.3)
    slope = (
        left * (ridge / left) ** 0.45,
        attainable(left * (ridge / left) ** 0.45, machine, dtype),
    )
    ceilings = [
        (ridge, low[0], f"ridge {number(ridge)} FLOP/byte", GRAY),
        (ridge * 4, peak, f"{number(peak)} TFLOP/s {dtype}", BLACK),
        (slope[0], slope[1] / 1e12, f"{number(machine.hbm_bytes_per_s / 1e12)} TB/s", BLACK),
    ]
    if beside:
        dashed = f"dashed: {beside.name} {'measured' if beside.measured else 'datasheet'}"
        ceilings.append((ridge * 4, low[1], dashed, GRAY))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.set_xlabel("arithmetic intensity (FLOP per byte of HBM traffic)")
    axes.set_ylabel("TFLOP/s")
    _marker_legend(axes, points)
    place_labels(axes, labels + ceilings, covered, roof)
    return figure

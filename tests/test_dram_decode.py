"""The bytes of decode that are compared with DRAM's counters are what its programs ask for."""

import pytest
import torch
from synthetic_times import install, writer

from benchmarks import _decode, dram_decode
from benchmarks import _dram_decode_driver as driver
from kernelbook import backend, checks, interpreter, meter
from kernelbook.kernels import attention_quantized as quantized

L2 = 60 * 2**20
SECTORS = {"l2_sectors_read": 1, "l2_sectors_written": 1, "sm_sectors_written": 1}


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(backend, "DEVICE", "cpu")


@pytest.fixture
def dry(monkeypatch, tmp_path):
    install(monkeypatch)
    return writer(tmp_path)


def launches(cases, dram=1.0, **changes) -> list[dict]:
    """What the profiler would print where DRAM moved `dram` times the useful bytes."""
    return [
        {
            "kernel": dram_decode.KERNEL,
            "dram_read": dram * case.work.read,
            "dram_written": float(case.work.written),
            "microseconds": 300.0,
            "sm_sectors_read": case.work.read // 32,
            **SECTORS,
            **changes,
        }
        for case in cases
    ]


def names(cases) -> list[tuple[str, str]]:
    return [(case.op, case.variant) for case in cases]


def test_all_sizes_have_the_same_cases():
    small, large = driver.cases("small"), driver.cases("large")
    assert names(small) == names(large)
    grouped = [("decode_gqa", variant) for variant in driver.GQA]
    assert names(large)[3:] == 2 * grouped
    assert [case.shape["query_heads"] for case in large[3::3]] == [32, 64]


@pytest.mark.parametrize("case", driver.cases("large"), ids=lambda case: case.variant)
def test_large_cases_read_a_gigabyte_in_one_launch(case, on_cpu):
    assert case.work.read >= 10**9
    assert _decode.chosen_splits(case.shape) == 1  # more would launch another kernel


@pytest.mark.parametrize("case", driver.cases("small"), ids=lambda case: case.variant)
def test_a_case_is_one_launch_and_asks_for_what_it_says(case, on_cpu):
    """As the meter counts: unique bytes are the useful ones, and those of grouped heads are asked
    for as often as it is said."""
    kernels = meter.count(case.call, *case.inputs()).kernels
    assert [kernel.name for kernel in kernels] == [dram_decode.KERNEL]
    assert kernels[0].read == case.work.read
    if case.op == "decode_gqa":
        assert kernels[0].requested_read == case.requested


@pytest.mark.parametrize("call", driver.GQA.values(), ids=driver.GQA)
def test_grouped_heads_give_the_same_answer(call, on_cpu):
    tensors = _decode.inputs(driver.gqa_shape("small", 4))
    checks.check(call(*tensors), _decode.answer64(*tensors))


def test_programs_of_grouped_heads(on_cpu):
    tensors = _decode.inputs(driver.gqa_shape("small", 4))
    found = []
    for call in driver.GQA.values():
        with interpreter.capture_launches() as captured:
            call(*tensors)
        found.append(captured[0].grid[0])
    assert found == [16, 64, 64]


def test_codes_are_what_the_quantized_kernel_takes(on_cpu):
    int8 = next(case for case in driver.cases("small") if case.variant == "int8")
    q, k, v, k_scale, v_scale = int8.inputs()
    expected = quantized.reference(q.double(), k, v, k_scale, v_scale)
    checks.check(int8.call(q, k, v, k_scale, v_scale), expected)


def test_a_launch_too_few_is_no_match():
    cases = driver.cases("small")
    assert dram_decode.matched(cases, launches(cases))[2][0].variant == "int8"
    with pytest.raises(LookupError, match="9 cases, but launches of"):
        dram_decode.matched(cases, launches(cases)[:-1])
    with pytest.raises(LookupError, match="other_kernel"):
        dram_decode.matched(cases, launches(cases, kernel="other_kernel"))


def test_rows(dry, monkeypatch, capsys):
    monkeypatch.setattr(driver, "SIZES", {"large": (2, 64)})
    times = {group: dram_decode.timed(group) for group in driver.GROUPS}
    cases = driver.cases("large")
    dram_decode.record(dry, launches(cases), times, L2)
    assert [(row["op"], row["variant"]) for row in dry.rows] == names(cases)
    assert dry.rows[0]["explanation"] == "" and dry.rows[0]["shape"]["page_size"] == 0
    assert dry.rows[1]["shape"]["page_size"] == 16 and "skipped" not in capsys.readouterr().out
    assert all(row["l2_read"] == row["work_read"] // 32 * 32 for row in dry.rows)
    grouped = dry.rows[3:6]
    assert [row["programs"] for row in grouped] == [4, 16, 16]
    assert all(row["requested_read"] >= row["work_read"] for row in grouped)


def test_too_many_bytes_are_explained():
    case = driver.cases("small")[0]
    found = launches([case], dram=2.0)[0]
    assert "too little against an L2" in dram_decode.explanation(case, found, L2)
    assert "left L2" in dram_decode.explanation(case, found, 1024)


def test_no_counters_no_rows(dry):
    dram_decode.record(dry, [], {}, L2)
    assert dry.rows == []


def test_no_profiler_is_said(dry, monkeypatch, capsys):
    monkeypatch.setattr(dram_decode.dram, "find_ncu", lambda: None)
    dram_decode.run(dry)
    assert "ncu is not installed" in capsys.readouterr().out and dry.rows == []


def test_the_profiler_is_asked_for_this_kernel_alone():
    line = dram_decode.dram.command(
        "ncu", "large", driver.__name__, [dram_decode.KERNEL], dram_decode.dram.METRICS, "all"
    )
    assert r"regex:^(split_kv_kernel\w*)$" in line
    assert line[-2:] == ["benchmarks._dram_decode_driver", "large"]


@pytest.mark.skipif(not backend.GPU, reason="runs the driver's small cases on a GPU")
def test_the_driver_runs():
    driver.main("small")
    assert torch.cuda.is_available()

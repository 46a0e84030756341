"""Timing without a GPU: the arithmetic, and the way it refuses; on a GPU also real times."""

import time

import pytest
import torch

from kernelbook import backend, timing

needs_gpu = pytest.mark.skipif(not backend.GPU, reason="needs a GPU")


def test_timing_keeps_median_and_spread():
    found = timing.Timing.of([10.0, 20.0, 30.0, 40.0, 1000.0], "events, cold L2")
    assert found.median_us == 30.0
    assert found.p10_us == pytest.approx(14.0) and found.p90_us == pytest.approx(616.0)
    assert found.p10_us <= found.median_us <= found.p90_us
    assert len(found.samples) == 5
    assert found.per_s(30e6) == pytest.approx(1e12)  # 30 MB in 30 µs is 1 TB/s
    assert str(found) == "30.0 µs (14.0 to 616.0)"


@pytest.mark.skipif(backend.GPU, reason="there is a GPU")
@pytest.mark.parametrize("call", ["measure", "graphed", "host_us", "side_by_side", "rotate"])
def test_without_a_gpu_the_reader_is_sent_to_the_records(call):
    argument = {"ours": print} if call == "side_by_side" else print
    with pytest.raises(RuntimeError, match=r"no.*records\.load|none here.*records\.load"):
        getattr(timing, call)(argument)


def test_rotated_inputs_exceed_the_l2_twice():
    assert timing.sets_past_l2(4 * 2**20, 60 * 2**20) == 31
    assert timing.sets_past_l2(2**30, 60 * 2**20) == 2
    for bytes_each in (1, 1000, 2**20, 2**26):
        assert timing.sets_past_l2(bytes_each, 2**20) * bytes_each > 2 * 2**20


def test_rotation_hands_out_the_sets_in_turn_to_each_function():
    rotation = timing.rotate([(1, 2), (3, 4), (5, 6)])
    add, multiply = rotation.bind(lambda a, b: a + b), rotation.bind(lambda a, b: a * b)
    assert [add() for _ in range(4)] == [3, 7, 11, 3]
    assert [multiply() for _ in range(2)] == [2, 12]
    assert add.sets == 3
    assert timing.rotate([7, 8]).bind(lambda a: a)() == 7


def test_each_turn_starts_with_another_variant():
    turns = [timing.turn_order(["a", "b", "c"], turn) for turn in range(4)]
    assert turns == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]


@needs_gpu
def test_a_copy_takes_the_time_of_its_bytes():
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    found = timing.measure(lambda: target.copy_(source))
    assert 0.3e12 < found.per_s(2 * source.nbytes) < 10e12
    assert found.p10_us <= found.median_us <= found.p90_us


@needs_gpu
def test_graph_replays_leave_out_the_launches():
    x = torch.randn(1024, device="cuda")
    both = timing.side_by_side({"a": lambda: x.add_(1), "b": lambda: x.mul_(1)}, graph=True)
    assert both["a"].median_us < 5 and both["a"].method == "graph of 20, warm L2"


@needs_gpu
def test_work_on_a_side_stream_is_refused():
    side = torch.cuda.Stream()
    x = torch.randn(8192, 8192, device="cuda")

    def cheat():
        with torch.cuda.stream(side):
            x @ x

    with pytest.raises(RuntimeError, match="another stream"):
        timing.measure(cheat, min_ms=5)


@needs_gpu
def test_host_time_does_not_wait_for_the_gpu():
    x = torch.randn(4096, 4096, device="cuda")
    x @ x
    began = time.perf_counter()
    found = timing.host_us(lambda: x @ x, calls=10)
    assert found.median_us < (time.perf_counter() - began) * 1e6 / 10

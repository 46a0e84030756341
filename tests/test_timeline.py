"""A synthetic trace with known answers, in the form that torch.profiler exports."""

import gzip
import json

import pytest
import torch

from kernelbook import backend, timeline


def event(cat, name, ts, dur, **more):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, **more}


def on_stream(cat, name, ts, dur, stream):
    return event(cat, name, ts, dur, tid=stream, args={"stream": stream, "device": 0})


TRACE = {
    "schemaVersion": 1,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        event("cpu_op", "aten::linear", 900, 20, tid=1),
        event("cpu_op", "aten::mm", 905, 10, tid=1),
        event("cpu_op", "aten::add", 930, 5, tid=1),
        event("cuda_runtime", "cudaLaunchKernel", 910, 5, tid=1),
        event("cuda_driver", "cuLaunchKernelEx", 932, 3, tid=1),
        event("cuda_runtime", "cudaGraphLaunch", 950, 8, tid=1),
        event("cuda_runtime", "cudaStreamWaitEvent", 960, 1, tid=1),
        event("cuda_runtime", "cudaStreamSynchronize", 990, 200, tid=1),
        on_stream("kernel", "matmul", 1000, 60, 7),
        on_stream("kernel", "add", 1070, 10, 7),  # a gap of 10
        on_stream("kernel", "matmul", 1120, 30, 7),  # a gap of 40
        on_stream("kernel", "ncclDevKernel_AllReduce", 1130, 40, 20),  # 20 of 40 overlap
        on_stream("gpu_memcpy", "Memcpy DtoH", 1180, 20, 7),  # a gap of 30 on stream 7
        event("gpu_user_annotation", "step", 1000, 200, tid=7),
    ],
}


@pytest.fixture
def known():
    return timeline.read(TRACE)


def test_kernels_copies_and_host_calls_are_told_apart(known):
    names = [kernel.name for kernel in known.kernels]
    assert names == ["matmul", "add", "matmul", "ncclDevKernel_AllReduce"]
    assert [copy.name for copy in known.copies] == ["Memcpy DtoH"]
    assert known.kernels[0].start_us == 0.0 and known.kernels[1].start_us == 70.0
    assert known.kernels[3].stream == 20
    assert [op.name for op in known.operations] == ["aten::linear", "aten::add"]


def test_span_busy_and_gaps(known):
    assert known.span_us == 200.0
    # [0, 60] + [70, 80] + [120, 170] + [180, 200]
    assert known.busy_us == 140.0
    assert known.busy_fraction == pytest.approx(0.7)
    assert [(gap.stream, gap.duration_us) for gap in known.gaps()] == [(7, 40), (7, 30), (7, 10)]
    longest = known.gaps()[0]
    assert (longest.before, longest.after, longest.start_us) == ("add", "matmul", 80.0)
    assert len(known.gaps(at_least_us=10)) == 2


def test_shares_sum_to_one_and_name_the_largest(known):
    shares = known.shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert known.longest == ("matmul", pytest.approx(90 / 140))
    assert list(shares) == ["matmul", "ncclDevKernel_AllReduce", "add"]
    assert known.kernel_count()["matmul"] == 2


def test_overlap_of_communication_with_computation(known):
    assert known.overlap == pytest.approx(0.5)
    known.kernels = [kernel for kernel in known.kernels if not kernel.communication]
    assert known.overlap is None


def test_launches_and_syncs(known):
    assert known.launches == 3  # two kernels, one graph
    assert [sync.name for sync in known.syncs] == ["cudaStreamSynchronize"]


def test_only_the_profiled_region_counts_on_the_host():
    region = event("user_annotation", timeline.REGION, 905, 60, tid=1)
    found = timeline.read({"traceEvents": [*TRACE["traceEvents"], region]})
    assert found.launches == 3 and found.syncs == []
    assert len(found.kernels) == 4  # kernels run later than the calls that launch them


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_saved_traces_load_again(known, tmp_path, name):
    known.save(tmp_path / name)
    again = timeline.load(tmp_path / name)
    assert again == known
    first = (tmp_path / name).read_bytes()
    again.save(tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_traces_as_torch_writes_them_load(tmp_path):
    with torch.profiler.profile() as profiler:
        torch.ones(64, 64) @ torch.ones(64, 64)
    profiler.export_chrome_trace(str(tmp_path / "cpu.json"))
    found = timeline.load(tmp_path / "cpu.json")
    assert any(op.name == "aten::matmul" for op in found.operations)
    assert found.kernels == [] and found.span_us == found.busy_us == found.busy_fraction == 0.0
    assert found.longest is None and found.gaps() == []


def test_what_is_no_trace_says_so(tmp_path):
    (tmp_path / "text.json").write_text("not json")
    (tmp_path / "list.json.gz").write_bytes(gzip.compress(json.dumps([1, 2]).encode()))
    for name in ("text.json", "list.json.gz"):
        with pytest.raises(ValueError, match=f"{name} is not a Chrome trace"):
            timeline.load(tmp_path / name)


def test_the_table_answers_the_four_questions(known):
    text = known.table()
    assert "4 kernels, 3 launch calls, 1 syncs" in text
    assert "busy 140 of 200 µs (70%), 3 gaps above 1 µs" in text
    assert "50% of communication overlaps" in text and "matmul" in text


@pytest.mark.skipif(backend.GPU, reason="there is a GPU")
def test_without_a_gpu_profile_sends_the_reader_to_saved_traces():
    with pytest.raises(RuntimeError, match=r"timeline\.load"):
        timeline.profile(lambda: None)


@pytest.mark.skipif(not backend.GPU, reason="needs a GPU")
def test_profile_counts_kernels_launches_and_syncs():
    x = torch.randn(256, 256, device="cuda")
    found = timeline.profile(lambda: (x + 1).sum().item())
    assert len(found.kernels) == 2 and found.launches == 2
    assert len(found.syncs) == 1 and len(found.copies) == 1

"""This machine's ceilings: copy bandwidth, bf16 matrix products, cost of a launch and a sync."""

import statistics
import time

import torch

from kernelbook import backend, timing
from kernelbook.kernels import matmul
from kernelbook.kernels.copy import copy_kernel
from kernelbook.work import Work

CALLS = 200  # fewer than the queue of launches holds: the host never waits for the GPU
NODES = 1000


def host_timing(fn, calls: int = CALLS, repeats: int = 25) -> timing.Timing:
    """Host time of one call, in µs: `calls` of them in a row, nothing waited for in between."""
    samples = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            fn()
        samples.append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return as_timing(samples)


def as_timing(samples: list[float]) -> timing.Timing:
    """Median and p10..p90 of samples in µs."""
    tenths = statistics.quantiles(samples, n=10)
    return timing.Timing(statistics.median(samples), tenths[0], tenths[-1], len(samples))


def sync_timing(repeats: int = 200) -> timing.Timing:
    """Host time of `torch.cuda.synchronize()` on an idle GPU, in µs."""
    samples = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) * 1e6)
    return as_timing(samples)


def graph_timing(fn, replays: int = 25) -> timing.Timing:
    """Time of one kernel among NODES in a graph, start to start, in µs."""
    fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NODES):
            fn()
    graph.replay()
    samples = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / NODES * 1e3)
    return as_timing(samples)


def bandwidth(writer) -> None:
    """Device copy of 2 GiB (less where memory is short), read and written counted."""
    free, _ = torch.cuda.mem_get_info()
    elements = min(2**30, 2 ** (free // 8).bit_length() // 4)
    source = torch.randn(elements, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    work = Work(0, source.nbytes, target.nbytes)
    add(writer, "copy", timing.measure(lambda: target.copy_(source)), "bf16", work)


def arithmetic(writer, n: int = 8192) -> None:
    """cuBLAS, bf16, n³, random data: zeros would run faster."""
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    work = matmul.work(n, n, n, torch.bfloat16)
    add(writer, "matmul_bf16", timing.measure(lambda: torch.mm(a, b, out=out)), "bf16", work)


def launches(writer) -> None:
    """Host µs a launch, eager and Triton; µs a kernel in a graph; host µs a sync."""
    x, y = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")

    def triton():
        copy_kernel[(1,)](x, y, 1, BLOCK=16)

    def eager():
        x.add_(1)

    for fn in (triton, eager):
        for _ in range(20):  # compile, load
            fn()
    work = Work(0, 4, 4)
    add(writer, "launch_eager", host_timing(eager), "fp32", work)
    add(writer, "launch_triton", host_timing(triton), "fp32", work)
    add(writer, "launch_graph", graph_timing(eager), "fp32", work)
    add(writer, "sync", sync_timing(), "fp32", Work(0, 0, 0))


def add(writer, variant: str, measured: timing.Timing, dtype: str, work: Work) -> None:
    """One row, and a line to look at."""
    print(f"{variant:14} {measured.median_us:12,.2f} us")
    writer.add(
        op="ceilings",
        variant=variant,
        peer=False,
        shape={},
        dtype=dtype,
        timing=measured,
        work=work,
    )


def run(writer) -> None:
    """Measure all ceilings; without a GPU there are none to measure."""
    if not backend.GPU:
        print("ceilings: skipped, no GPU")
        return
    for part in (bandwidth, arithmetic, launches):
        part(writer)
        torch.cuda.empty_cache()

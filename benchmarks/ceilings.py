"""This machine's ceilings: copy bandwidth, bf16 matrix products, cost of a launch and a sync."""

from time import perf_counter

import torch

from kernelbook import backend, timing
from kernelbook.kernels import matmul
from kernelbook.kernels.copy import copy_kernel
from kernelbook.work import Work

NODES = 1000  # kernels in the graph that shows what one costs


def sync_timing(repeats: int = 200) -> timing.Timing:
    """Host time of `torch.cuda.synchronize()` on an idle GPU, in µs."""
    samples = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = perf_counter()
        torch.cuda.synchronize()
        samples.append((perf_counter() - began) * 1e6)
    return timing.Timing.of(samples, "host")


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

    work = Work(0, 4, 4)
    add(writer, "launch_eager", timing.host_us(eager), "fp32", work)
    add(writer, "launch_triton", timing.host_us(triton), "fp32", work)
    replayed = timing.measure(eager, graph=True, calls=NODES)
    add(writer, "launch_graph", replayed, "fp32", work)
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

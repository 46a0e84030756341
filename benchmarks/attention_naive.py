"""Naive attention's three kernels, one by one, for prefill [n, n] and decode [1, n], and a trace.

The trace (a Chrome trace of a few calls) goes to data/traces/, for the timeline of chapter 02.
"""

from pathlib import Path

import torch

from kernelbook import backend, timeline, timing
from kernelbook.kernels import attention_naive as naive

TRACE = Path(__file__).resolve().parents[1] / "data" / "traces" / "attention_naive.json.gz"
DTYPE = torch.bfloat16
PREFILL = {"batch": 2, "query_heads": 16, "kv_heads": 16, "head_dim": 128}
DECODE = {"batch": 1, "query_heads": 32, "kv_heads": 8, "head_dim": 128}
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def inputs(sizes: dict, queries: int, keys: int):
    """Random q, k, v, and memory for the scores and the output."""
    batch, heads, kv_heads, head_dim = sizes.values()

    def random(*shape):
        return torch.randn(*shape, device="cuda", dtype=DTYPE)

    q = random(batch, heads, queries, head_dim)
    k, v = (random(batch, kv_heads, keys, head_dim) for _ in range(2))
    return q, k, v, random(batch, heads, queries, keys), torch.empty_like(q)


def scores(q, k, v, scores, out):
    naive.write_scores(q, k, scores, False, q.shape[-1] ** -0.5)


def softmax(q, k, v, scores, out):
    naive.softmax_rows(scores)


def values(q, k, v, scores, out):
    naive.weigh_values(scores, v, out)


def whole(q, k, v, scores, out):
    naive.attention_naive(q, k, v, out=out)


def pytorch(q, k, v, scores, out):
    naive.reference(q, k, v)


CALLS = {
    "scores_kernel": scores,
    "softmax_kernel": softmax,
    "values_kernel": values,
    "whole": whole,
    "pytorch": pytorch,
}


def measure(writer, sizes: dict, queries: int, keys: int, graph: bool) -> None:
    """Rows of one shape: each kernel, the whole, and PyTorch's operations (up to 4 copies)."""
    copies = 5 * sizes["batch"] * sizes["query_heads"] * queries * keys * DTYPE.itemsize
    if copies > torch.cuda.mem_get_info()[0]:
        print(f"attention_naive: {queries} x {keys} skipped, memory is short")
        return
    batch, heads, kv_heads, head_dim = sizes.values()
    works = naive.work_by_kernel(batch, heads, kv_heads, queries, keys, head_dim, DTYPE)
    total = naive.work(batch, heads, kv_heads, queries, keys, head_dim, DTYPE)
    tensors = inputs(sizes, queries, keys)
    sets = timing.Rotation([tensors])
    if graph:  # other inputs at each call, or the L2 would hold them
        own = sum(tensor.nbytes for tensor in tensors)
        sets = timing.rotate(lambda: inputs(sizes, queries, keys), bytes_each=own)
    calls = {name: sets.bind(call) for name, call in CALLS.items()}
    for variant, found in timing.side_by_side(calls, graph=graph, min_ms=40).items():
        print(f"{queries:6} x {keys:6} {variant:15} {found.median_us:12,.1f} us")
        writer.add(
            op="attention_naive",
            variant=variant,
            peer=variant == "pytorch",
            shape={**sizes, "queries": queries, "keys": keys},
            dtype="bf16",
            timing=found,
            work=works.get(variant, total),
        )


def trace(n: int = 4096) -> None:
    """Save what the profiler saw of three calls."""
    tensors = inputs(PREFILL, n, n)
    TRACE.parent.mkdir(parents=True, exist_ok=True)
    timeline.profile(lambda: whole(*tensors), calls=3).save(TRACE)


def run(writer) -> None:
    """Prefill and decode shapes, then the trace; without a GPU nothing."""
    if not backend.GPU:
        print("attention_naive: skipped, no GPU")
        return
    for n in LENGTHS:
        measure(writer, PREFILL, n, n, graph=n <= 1024)
        torch.cuda.empty_cache()
    for n in (1024, 4096, 16384, 65536):
        measure(writer, DECODE, 1, n, graph=True)
        torch.cuda.empty_cache()
    trace()

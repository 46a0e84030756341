"""Chapter 03's own kernel beside the tuned one and cuDNN's: times of prefill and decode, a trace.

Prefill without a mask, n 64 to 16k, and decode (1 query); up to 2k as graphs.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks._chapter import built_in
from kernelbook import backend, timeline, timing
from kernelbook.kernels import attention_naive as naive
from kernelbook.kernels import attention_prefill as prefill

TRACE = Path(__file__).resolve().parents[1] / "data" / "traces" / "tiled_attention.json.gz"
PREFILL = {"batch": 2, "query_heads": 16, "kv_heads": 16, "head_dim": 128}
DECODE = {"batch": 1, "query_heads": 32, "kv_heads": 8, "head_dim": 128}
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
KEYS = (1024, 4096, 16384, 65536)
GRAPHED = 2048
BF16 = torch.bfloat16


def random(*shape, dtype=BF16):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def inputs(sizes: dict, queries: int, keys: int, dtype=BF16):
    """q, k and v of unit variance."""
    q = random(sizes["batch"], sizes["query_heads"], queries, sizes["head_dim"], dtype=dtype)
    kv = (sizes["batch"], sizes["kv_heads"], keys, sizes["head_dim"])
    return q, random(*kv, dtype=dtype), random(*kv, dtype=dtype)


def sdpa(q, k, v, causal=False):
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def cudnn(q, k, v, causal=False):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return sdpa(q, k, v, causal)


def variants() -> dict:
    chapter = built_in("03").tiled
    tiled = prefill.attention_prefill
    return {"naive": naive.attention_naive, "chapter": chapter, "tiled": tiled, "sdpa_cudnn": cudnn}


def measure(writer, functions: dict, sizes: dict, queries: int, keys: int, graph: bool) -> None:
    """Rows of one shape, its variants in turn."""
    q, k, v = inputs(sizes, queries, keys)
    sets = timing.Rotation([(q, k, v)])
    if graph:  # other inputs at each call, or the L2 would hold them
        own = 2 * q.nbytes + k.nbytes + v.nbytes
        sets = timing.rotate(lambda: inputs(sizes, queries, keys), bytes_each=own)
    calls = {name: sets.bind(function) for name, function in functions.items()}
    batch, heads, kv_heads, head_dim = sizes.values()
    work = prefill.work(batch, heads, kv_heads, queries, keys, head_dim, BF16)
    for name, found in timing.side_by_side(
        calls, graph=graph, min_ms=15, warmup_ms=8, rounds=3
    ).items():
        print(f"{queries:6} x {keys:6} {name:10} {found.median_us:12,.1f} us")
        writer.add(
            op="tiled_attention",
            variant=name,
            peer=name.startswith("sdpa"),
            shape={**sizes, "queries": queries, "keys": keys},
            dtype="bf16",
            timing=found,
            work=naive.work(batch, heads, kv_heads, queries, keys, head_dim, BF16)
            if name == "naive"
            else work,
        )


def times(writer) -> None:
    functions = variants()
    for n in LENGTHS:
        measure(writer, functions, PREFILL, n, n, graph=n <= GRAPHED)
        torch.cuda.empty_cache()
    for keys in KEYS:
        measure(writer, functions, DECODE, 1, keys, graph=True)
        torch.cuda.empty_cache()


def trace(n: int = 4096) -> None:
    """Save what the profiler saw of one call of each, one after another."""
    tensors, functions = inputs(PREFILL, n, n), variants()

    def one_of_each():
        for function in functions.values():
            function(*tensors)

    TRACE.parent.mkdir(parents=True, exist_ok=True)
    timeline.profile(one_of_each).save(TRACE)


def run(writer) -> None:
    """All lengths, then the trace; without a GPU nothing."""
    if not backend.GPU:
        print("tiled_attention: skipped, no GPU")
        return
    times(writer)
    trace()

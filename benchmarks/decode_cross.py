"""Two kernels, two shapes: does the prefill kernel serve decode, and the decode kernel prefill?

First the four pairs, then queries from 1 to 512 against 32k keys (a chunk of a prompt), causal and
aligned to the end: where do the kernels cross? FlashAttention-2 aligns so by itself
(`causal_lower_right`); cuDNN's SDPA must be given a mask in memory.
"""

from functools import partial

import torch
from torch.nn.attention.bias import causal_lower_right

from benchmarks import _decode as bench
from benchmarks import _warm
from kernelbook import backend
from kernelbook.kernels.attention_naive import attention_naive
from kernelbook.kernels.attention_prefill import attention_prefill

KEYS = 32768
CROSS = ((1, KEYS), (4096, 4096))  # queries, keys: decode and prefill
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def shape_of(queries: int, keys: int) -> dict:
    return bench.shape_of(1, keys, queries, causal=True)


def cudnn(queries: int, keys: int):
    """(call, how it masks): numbers to add from memory, unless there is nothing to align.

    They have the queries' dtype: True and False would be converted at every call.
    """
    if queries in (1, keys):
        causal = queries > 1
        return partial(bench.cudnn, is_causal=causal), "causal" if causal else "none"
    mask = torch.full((queries, keys), -torch.inf, dtype=bench.DTYPE, device=backend.DEVICE)
    return partial(bench.cudnn, attn_mask=mask.triu(keys - queries + 1)), "dense"


def flash(queries: int, keys: int):
    """(call, how it masks); one query sees everything."""
    if queries in (1, keys):
        causal = queries > 1
        return partial(bench.flash, is_causal=causal), "causal" if causal else "none"
    return partial(bench.flash, attn_mask=causal_lower_right(queries, keys)), "lower right"


def own(shape: dict) -> dict:
    splits = bench.chosen_splits(shape)
    return {
        "prefill_kernel": partial(attention_prefill, causal=True),
        "decode_kernel": partial(bench.split, causal=True, splits=splits),
    }


def row(writer, queries: int, keys: int, part: str) -> dict:
    """All variants at one shape."""
    shape = shape_of(queries, keys)
    calls, splits = own(shape), bench.chosen_splits(shape)
    tensors = bench.inputs({**shape, "batch": 1})
    extra = {
        "prefill_kernel": {"programs": bench.prefill_programs(*tensors, causal=True)},
        "decode_kernel": {"programs": bench.programs(shape, splits), "splits": splits},
    }
    del tensors
    if part == "cross":
        calls["naive"] = partial(attention_naive, causal=True)
    for name, (call, mask) in {
        "sdpa_cudnn": cudnn(queries, keys),
        "sdpa_flash": flash(queries, keys),
    }.items():
        calls[name], extra[name] = call, {"mask": mask}
    return bench.measure(
        writer, "decode_cross", shape, calls, extra, causal=True, part=part
    )  # fmt: skip


def compile_all() -> None:
    """Each number of queries once, on few keys with as many splits as the real ones get."""
    calls = []
    for queries, keys in {*CROSS, *((n, KEYS) for n in QUERIES)}:
        shape = shape_of(queries, keys)
        tensors = bench.inputs(bench.small(shape))
        calls += [partial(call, *tensors) for call in own(shape).values()]
        if (queries, keys) in CROSS:
            calls.append(partial(attention_naive, *tensors, causal=True))
    _warm.compile_all(calls)


def run(writer) -> None:
    """The cross, then the query lengths."""
    if not bench.has_gpu("decode_cross"):
        return
    compile_all()
    for part, shapes in (("cross", CROSS), ("queries", [(n, KEYS) for n in QUERIES])):
        for queries, keys in shapes:
            found = row(writer, queries, keys, part)
            bench.say(f"{part} {queries} x {keys}: {bench.times_in_words(found)}")

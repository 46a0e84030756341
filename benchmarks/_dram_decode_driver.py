"""What `dram_decode` runs under the profiler: each decode once, on random data, sizes by name.

python -m benchmarks._dram_decode_driver large|small
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks import _decode as bench
from benchmarks import _kv
from kernelbook import backend
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_paged as paged
from kernelbook.kernels import attention_quantized as quantized
from kernelbook.work import Work

PAGE = 16
# batch and tokens: 1 GiB of bf16 KV; int8 has half the bytes a token, so twice the batch
SIZES = {"large": (32, 8192), "small": (2, 64)}
GROUPS = (4, 8)


@dataclass(frozen=True)
class Case:
    """One launch: its op and variant, a maker of inputs, the call, its shape, its useful work.

    requested  bytes that its programs ask for, where that is not `work.read`
    """

    op: str
    variant: str
    inputs: Callable
    call: Callable
    shape: dict
    work: Work
    requested: int = 0


# --- grouped heads -------------------------------------------------------------------------


def packed(q, k, v):
    """A program for all query heads of a KV head, as `attention_decode` does."""
    return bench.split(q, k, v, splits=1)


def per_head(q, k, v):
    """A program for each query head; those that share a KV head next to each other.

    A KV head is made a sequence of its own, seen once by each of its query heads: a stride of 0.
    """
    batch, heads, queries, head_dim = q.shape
    group, sequences = heads // k.shape[1], batch * k.shape[1]
    rows = q.view(sequences, group, queries, head_dim)
    k, v = (x.view(sequences, 1, *x.shape[2:]).expand(-1, group, -1, -1) for x in (k, v))
    return bench.split(rows, k, v, splits=1).view(q.shape)


def per_head_apart(q, k, v):
    """A program for each query head; those that share a KV head as far apart as can be."""
    batch, heads, queries, head_dim = q.shape
    group, sequences = heads // k.shape[1], batch * k.shape[1]
    rows = q.view(sequences, group, queries, head_dim).transpose(0, 1)
    k, v = (x.view(1, sequences, *x.shape[2:]).expand(group, -1, -1, -1) for x in (k, v))
    return bench.split(rows, k, v, splits=1).transpose(0, 1).reshape(q.shape)


GQA = {"packed": packed, "per_head": per_head, "per_head_apart": per_head_apart}


def gqa_shape(size: str, group: int) -> dict:
    shape = bench.shape_of(*SIZES[size])
    return {**shape, "query_heads": group * shape["kv_heads"]}


def gqa_requested(variant: str, shape: dict) -> int:
    """Bytes that programs ask for: every query head's own keys and values, unless packed."""
    work = bench.work_of(shape)
    kv = work.read - work.written  # q is as large as out
    times = 1 if variant == "packed" else shape["query_heads"] // shape["kv_heads"]
    return times * kv + work.written


# --- layouts -------------------------------------------------------------------------------


def on_pages(shape: dict):
    """q, k and v as pools of pages, a table in random order, lengths."""
    q, k, v = bench.inputs(shape)
    batch, length = shape["batch"], shape["lengths"]
    table = _kv.table_of(batch, length // PAGE)
    return q, _kv.pool(k, PAGE), _kv.pool(v, PAGE), table, _kv.lengths_of(batch, length)


def in_codes(shape: dict):
    """q, int8 codes of k and v, and their scales."""
    size = (shape["batch"], shape["kv_heads"], shape["lengths"], shape["head_dim"])
    q = bench.random(shape["batch"], shape["query_heads"], 1, shape["head_dim"])

    def codes():
        return torch.randint(-127, 128, size, dtype=torch.int8, device=q.device)

    def scales():
        return torch.rand(size[:3], device=q.device) / 64 + 1 / 64

    return q, codes(), codes(), scales(), scales()


def layouts(size: str) -> list[Case]:
    batch, length = SIZES[size]
    shape, double = bench.shape_of(batch, length), bench.shape_of(2 * batch, length)
    ragged = {**shape, "lengths": [length] * batch}
    paged_work = paged.work(**ragged, dtype=bench.DTYPE, page_size=PAGE)
    int8_work = quantized.work(**double, dtype=bench.DTYPE)
    contiguous, pages = {**shape, "page_size": 0}, {**shape, "page_size": PAGE}
    codes = {**double, "page_size": 0}
    make, op = partial(bench.inputs, shape), "dram_decode"
    return [
        Case(op, "split_kv", make, decode.attention_decode, contiguous, bench.work_of(shape)),
        Case(
            op, "paged_16", partial(on_pages, shape), paged.attention_paged, pages, paged_work
        ),
        Case(
            op, "int8", partial(in_codes, double), quantized.attention_quantized, codes, int8_work
        ),
    ]  # fmt: skip


def cases(size: str) -> list[Case]:
    """Layouts, then grouped heads; each launches `split_kv_kernel` once and nothing after it."""
    grouped = []
    for group in GROUPS:
        shape = gqa_shape(size, group)
        for variant, call in GQA.items():
            asked, make = gqa_requested(variant, shape), partial(bench.inputs, shape)
            work = bench.work_of(shape)
            grouped.append(Case("decode_gqa", variant, make, call, shape, work, asked))
    return layouts(size) + grouped


def main(size: str) -> None:
    """Run every case once on the GPU; one case's memory is free before the next begins."""
    if size == "large" and backend.machine().memory_bytes < 16 * 2**30:
        raise SystemExit("the large cases need 16 GiB of GPU memory")
    for case in cases(size):
        out = case.call(*case.inputs())
        torch.cuda.synchronize()
        assert not out.float().mean().isnan()
        del out
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1])

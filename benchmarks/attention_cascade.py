"""Shared-prefix attention beside plain decode: prefix copied for each sequence, or shared pages.

Graph to graph, inputs rotated past the L2. Plain decode asks for the prefix once a sequence; where
pages are shared the L2 may answer. Cascade should lose in the first cases: one sequence, or a short
prefix. `sdpa_cudnn` has whole sequences, too.
"""

from functools import partial

import torch

from benchmarks import _kv, _rotated
from kernelbook import backend
from kernelbook.kernels import attention_cascade as cascade
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels.attention_paged import attention_paged
from kernelbook.kernels.attention_paged import work as paged_work

DTYPE = torch.bfloat16
QUERY_HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 64
SUFFIX = 256
CASES = (  # batch, prefix
    (1, 4096),
    (8, 128),
    (8, 1024),
    (8, 4096),
    (32, 1024),
    (32, 4096),
    (32, 16384),
    (64, 4096),
)
HEADS = {"query_heads": QUERY_HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}


def inputs(batch: int, prefix: int):
    """q, prefix, suffixes and their lengths; the same as whole sequences; as shared pages.

    All variants read as much as they would; their numbers differ.
    """
    q = _kv.randn(batch, QUERY_HEADS, 1, HEAD_DIM)
    shared = [_kv.randn(KV_HEADS, prefix, HEAD_DIM) for _ in range(2)]
    own = [_kv.randn(batch, KV_HEADS, SUFFIX, HEAD_DIM) for _ in range(2)]
    lengths = _kv.lengths_of(batch, SUFFIX)
    whole = [_kv.randn(batch, KV_HEADS, prefix + SUFFIX, HEAD_DIM) for _ in range(2)]
    first, rest = prefix // PAGE, SUFFIX // PAGE
    pools = [_kv.randn(first + batch * rest, KV_HEADS, PAGE, HEAD_DIM) for _ in range(2)]
    begin = torch.arange(first).expand(batch, -1)
    end = first + torch.arange(batch * rest).reshape(batch, rest)
    table = torch.cat([begin, end], dim=1).int().to(q.device)
    return q, shared, own, lengths, whole, lengths + prefix, pools, table


def shared_prefix(q, shared, own, lengths, whole, ends, pools, table):
    return cascade.attention_cascade(q, *shared, *own, lengths)


def plain(q, shared, own, lengths, whole, ends, pools, table):
    return decode.attention_decode(q, *whole, ends)


def shared_pages(q, shared, own, lengths, whole, ends, pools, table):
    return attention_paged(q, *pools, table, ends)


def sdpa_cudnn(q, shared, own, lengths, whole, ends, pools, table):
    return _kv.cudnn(q, *whole)


CALLS = {
    "cascade": shared_prefix,
    "plain": plain,
    "shared_pages": shared_pages,
    "sdpa_cudnn": sdpa_cudnn,
}
PEERS = ("sdpa_cudnn",)


def cascade64(q, shared, own, lengths, whole, ends, pools, table):
    some = _rotated.sample(len(q))
    shared, own = [x.double() for x in shared], [x[some].double() for x in own]
    return cascade.reference(q[some].double(), *shared, *own, lengths[some])


def plain64(q, shared, own, lengths, whole, ends, pools, table):
    return _kv.attended(q, *whole, ends)


def pages64(q, shared, own, lengths, whole, ends, pools, table):
    return _kv.attended_pages(q, *pools, table, ends)


EXPECTED = {
    "cascade": cascade64,
    "plain": plain64,
    "shared_pages": pages64,
    "sdpa_cudnn": plain64,
}


def work_of(variant: str, batch: int, prefix: int):
    """Useful work of a variant: plain decode reads each sequence's prefix."""
    ends = [prefix + SUFFIX] * batch
    if variant in ("plain", "sdpa_cudnn"):
        return decode.work(batch, QUERY_HEADS, KV_HEADS, ends, HEAD_DIM, DTYPE)
    if variant == "shared_pages":
        return paged_work(batch, QUERY_HEADS, KV_HEADS, ends, HEAD_DIM, DTYPE, PAGE)
    return cascade.work(QUERY_HEADS, KV_HEADS, prefix, [SUFFIX] * batch, HEAD_DIM, DTYPE)


def measure(writer, batch: int, prefix: int) -> None:
    shape = {"batch": batch, "prefix": prefix, "suffix": SUFFIX, **HEADS}
    least = work_of("cascade", batch, prefix).bytes
    found = _rotated.side_by_side(CALLS, partial(inputs, batch, prefix), least, EXPECTED, PEERS)
    for variant, time in found.items():
        work = work_of(variant, batch, prefix)
        print(
            f"{batch:3} x ({prefix:6} + {SUFFIX}) {variant:13} {time.median_us:8.1f} us "
            f"{time.per_s(work.bytes) / 1e12:5.2f} TB/s"
        )
        writer.add(
            op="attention_cascade", variant=variant, peer=variant in PEERS, shape=shape,
            dtype=DTYPE, timing=time, work=work,
        )  # fmt: skip


def run(writer) -> None:
    """Prefixes from 128 to 16k, batches from 1 to 64."""
    if not backend.GPU:
        print("attention_cascade: skipped, no GPU")
        return
    for case in CASES:
        measure(writer, *case)

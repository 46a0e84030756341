"""Attends to full pages only.

cell: lab05_task2
points: 0
says: full pages alone are read: the last, partial page counts too
"""

import torch
import triton
import triton.language as tl


@triton.jit
def paged_decode_kernel(
    q,
    k,
    v,
    table,
    lengths,
    out,
    heads,
    kv_heads,
    entries,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    kv_head, sequence = tl.program_id(0), tl.program_id(1)
    group = heads // kv_heads
    row = tl.arange(0, BLOCK_M)
    column = tl.arange(0, 64)
    q_at = (sequence * heads + kv_head * group + row)[:, None] * 64 + column[None, :]
    queries = tl.load(q + q_at, mask=row[:, None] < group, other=0.0)
    length = tl.load(lengths + sequence)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, 64], tl.float32)
    for start in range(0, length // PAGE * PAGE, PAGE):
        place = tl.arange(0, PAGE)
        page = tl.load(table + sequence * entries + start // PAGE).to(tl.int64)
        at = (page * kv_heads + kv_head) * PAGE + place
        at = at[:, None] * 64 + column[None, :]
        inside = start + place < length
        keys = tl.load(k + at, mask=inside[:, None], other=0.0)
        values = tl.load(v + at, mask=inside[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") / 8
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        rescale = tl.exp(largest - new)
        weights = tl.exp(scores - new[:, None])
        total = total * rescale + tl.sum(weights, axis=1)
        weighted = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        acc = acc * rescale[:, None] + weighted
        largest = new
    tl.store(out + q_at, acc / total[:, None], mask=row[:, None] < group)


def paged_decode(q, k_pages, v_pages, table, lengths):
    """Decode through a block table; k_pages and v_pages [pool, kv_heads, page_size, 64]."""
    batch, heads, _ = q.shape
    _, kv_heads, page_size, _ = k_pages.shape
    out = torch.empty_like(q)
    paged_decode_kernel[(kv_heads, batch)](
        q, k_pages, v_pages, table, lengths, out, heads, kv_heads, table.shape[1],
        PAGE=page_size, BLOCK_M=16,
    )  # fmt: skip
    return out

"""Copies the pages to a contiguous cache by a kernel of its own first.

cell: lab05_task2
points: 8
says: expected 1 launch, got 3: gather_kernel, gather_kernel, contiguous_kernel
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gather_kernel(pages, table, lengths, out, kv_heads, entries, PAGE: tl.constexpr):
    entry, kv_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = tl.arange(0, PAGE)
    token = entry * PAGE + place
    inside = token[:, None] < tl.load(lengths + sequence)
    if entry * PAGE < tl.load(lengths + sequence):
        column = tl.arange(0, 64)
        page = tl.load(table + sequence * entries + entry)
        at = ((page * kv_heads + kv_head) * PAGE + place)[:, None] * 64 + column[None, :]
        to = (sequence * kv_heads + kv_head) * entries * PAGE + token
        to = to[:, None] * 64 + column[None, :]
        tl.store(out + to, tl.load(pages + at, mask=inside, other=0.0), mask=inside)


@triton.jit
def contiguous_kernel(
    q, k, v, lengths, out, heads, kv_heads, capacity, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    kv_head, sequence = tl.program_id(0), tl.program_id(1)
    group = heads // kv_heads
    row = tl.arange(0, BLOCK_M)  # query heads of this KV head
    column = tl.arange(0, 64)
    q_at = (sequence * heads + kv_head * group + row)[:, None] * 64 + column[None, :]
    queries = tl.load(q + q_at, mask=row[:, None] < group, other=0.0)  # [BLOCK_M, 64]
    length = tl.load(lengths + sequence)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, 64], tl.float32)
    for start in range(0, length, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        at = (sequence * kv_heads + kv_head) * capacity + token
        at = at[:, None] * 64 + column[None, :]  # [BLOCK_N, 64]
        keys = tl.load(k + at, mask=token[:, None] < length, other=0.0)
        values = tl.load(v + at, mask=token[:, None] < length, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") / 8  # [BLOCK_M, BLOCK_N]
        scores = tl.where(token[None, :] < length, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        rescale = tl.exp(largest - new)
        weights = tl.exp(scores - new[:, None])
        total = total * rescale + tl.sum(weights, axis=1)
        weighted = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        acc = acc * rescale[:, None] + weighted
        largest = new
    tl.store(out + q_at, acc / total[:, None], mask=row[:, None] < group)


def contiguous_decode(q, k, v, lengths):
    """Contiguous decode: one program for each KV head of each sequence."""
    batch, heads, _ = q.shape
    _, kv_heads, capacity, _ = k.shape
    out = torch.empty_like(q)
    contiguous_kernel[(kv_heads, batch)](
        q, k, v, lengths, out, heads, kv_heads, capacity, BLOCK_M=16, BLOCK_N=32
    )
    return out


def paged_decode(q, k_pages, v_pages, table, lengths):
    """Decode through a block table; k_pages and v_pages [pool, kv_heads, page_size, 64]."""
    batch, entries = table.shape
    _, kv_heads, page_size, _ = k_pages.shape
    copies = []
    for pages in (k_pages, v_pages):
        copy = torch.empty(batch, kv_heads, entries * page_size, 64, dtype=q.dtype, device=q.device)
        gather_kernel[(entries, kv_heads, batch)](
            pages, table, lengths, copy, kv_heads, entries, PAGE=page_size
        )
        copies.append(copy)
    return contiguous_decode(q, *copies, lengths)

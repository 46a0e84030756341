"""Starts the running maximum at 0, above every value of a row far below 0.

cell: lab03_task4
points: 7
says: the largest so far starts at -inf, not at 0
"""

import torch
import triton
import triton.language as tl


@triton.jit
def grouped_attention_kernel(
    q, k, v, out, n, m, kv_heads, group, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    kv_head = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, 64)
    head = kv_head * group + row % group
    q_at = (row // group * kv_heads * group + head)[:, None] * 64 + column[None, :]
    queries = tl.load(q + q_at, mask=row[:, None] < n * group, other=0.0)
    largest = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, 64], tl.float32)
    for start in range(0, m, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        kv_at = (key * kv_heads + kv_head)[:, None] * 64 + column[None, :]
        keys = tl.load(k + kv_at, mask=key[:, None] < m, other=0.0)
        values = tl.load(v + kv_at, mask=key[:, None] < m, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") / 8
        scores = tl.where(key[None, :] < m, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        rescale = tl.exp(largest - new)
        weights = tl.exp(scores - new[:, None])
        total = total * rescale + tl.sum(weights, axis=1)
        weighted = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        acc = acc * rescale[:, None] + weighted
        largest = new
    tl.store(out + q_at, acc / total[:, None], mask=row[:, None] < n * group)


def grouped_attention(q, k, v):
    """q [n, heads, 64], k and v [m, kv_heads, 64] -> [n, heads, 64]; a program serves a group."""
    n, heads, _ = q.shape
    m, kv_heads, _ = k.shape
    group = heads // kv_heads
    out = torch.empty_like(q)
    grouped_attention_kernel[(triton.cdiv(n * group, 64), kv_heads)](
        q, k, v, out, n, m, kv_heads, group, BLOCK_M=64, BLOCK_N=64
    )
    return out

"""Adds the largest score and a logarithm to base 2.

cell: lab04_task2
points: 0
says: largest + log2(total); lse is a natural logarithm
"""

import torch
import triton
import triton.language as tl


@triton.jit
def split_kernel(
    q, k, v, lengths, out, lse, capacity, kv_heads, group, splits,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    split, kv_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence)
    each = tl.cdiv(tl.cdiv(length, BLOCK_N), splits) * BLOCK_N
    begin = split * each
    end = tl.minimum(begin + each, length)
    row = tl.arange(0, BLOCK_M)
    mine = row < group
    head = (sequence * kv_heads + kv_head) * group + row
    place = head * splits + split
    if begin < end:
        column = tl.arange(0, 64)
        queries = tl.load(q + head[:, None] * 64 + column[None, :], mask=mine[:, None], other=0.0)
        first = (sequence * kv_heads + kv_head) * capacity
        largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, 64], tl.float32)
        for start in range(begin, end, BLOCK_N):
            key = start + tl.arange(0, BLOCK_N)
            kv_at = (first + key)[:, None] * 64 + column[None, :]
            keys = tl.load(k + kv_at, mask=key[:, None] < end, other=0.0)
            values = tl.load(v + kv_at, mask=key[:, None] < end, other=0.0)
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") / 8
            scores = tl.where(key[None, :] < end, scores, float("-inf"))
            new = tl.maximum(largest, tl.max(scores, axis=1))
            rescale = tl.exp(largest - new)
            weights = tl.exp(scores - new[:, None])
            total = total * rescale + tl.sum(weights, axis=1)
            weighted = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
            acc = acc * rescale[:, None] + weighted
            largest = new
        out_at = place[:, None] * 64 + column[None, :]
        tl.store(out + out_at, acc / total[:, None], mask=mine[:, None])
        tl.store(lse + place, largest + tl.log2(total), mask=mine)
    else:
        tl.store(lse + place, tl.full([BLOCK_M], float("-inf"), tl.float32), mask=mine)


def attend_to_split(q, k, v, lengths, splits):
    """Partial results out [batch, heads, splits, 64] and lse [batch, heads, splits], fp32."""
    batch, heads, _ = q.shape
    _, kv_heads, capacity, _ = k.shape
    out = torch.empty(batch, heads, splits, 64, dtype=torch.float32, device=q.device)
    lse = torch.empty(batch, heads, splits, dtype=torch.float32, device=q.device)
    split_kernel[(splits, kv_heads, batch)](
        q, k, v, lengths, out, lse, capacity, kv_heads, heads // kv_heads, splits,
        BLOCK_M=16, BLOCK_N=64,
    )  # fmt: skip
    return out, lse

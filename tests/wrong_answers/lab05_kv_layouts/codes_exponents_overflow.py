"""Takes exp of the scores as they are, without their maximum.

cell: lab05_task4
points: 9
says: exp(500) overflows: subtract the largest score so far before exp
"""

import torch
import triton
import triton.language as tl


@triton.jit
def quantized_decode_kernel(
    q, k, v, k_scale, v_scale, lengths, out, heads, kv_heads, capacity,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    kv_head, sequence = tl.program_id(0), tl.program_id(1)
    group = heads // kv_heads
    row = tl.arange(0, BLOCK_M)
    column = tl.arange(0, 64)
    q_at = (sequence * heads + kv_head * group + row)[:, None] * 64 + column[None, :]
    queries = tl.load(q + q_at, mask=row[:, None] < group, other=0.0)
    length = tl.load(lengths + sequence)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, 64], tl.float32)
    for start in range(0, length, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        inside = token < length
        vector = (sequence * kv_heads + kv_head) * capacity + token
        at = vector[:, None] * 64 + column[None, :]
        keys = tl.load(k + at, mask=inside[:, None], other=0).to(queries.dtype)
        values = tl.load(v + at, mask=inside[:, None], other=0).to(queries.dtype)
        key_scale = tl.load(k_scale + vector, mask=inside, other=0.0)
        value_scale = tl.load(v_scale + vector, mask=inside, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * key_scale[None, :] / 8
        scores = tl.where(inside[None, :], scores, float("-inf"))
        weights = tl.exp(scores)
        total = total + tl.sum(weights, axis=1)
        weights = weights * value_scale[None, :]
        weighted = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        acc = acc + weighted
    tl.store(out + q_at, acc / total[:, None], mask=row[:, None] < group)


def quantized_decode(q, k, v, k_scale, v_scale, lengths):
    """Decode over int8 k and v [batch, kv_heads, capacity, 64], dequantized in registers."""
    batch, heads, _ = q.shape
    _, kv_heads, capacity, _ = k.shape
    out = torch.empty_like(q)
    quantized_decode_kernel[(kv_heads, batch)](
        q, k, v, k_scale, v_scale, lengths, out, heads, kv_heads, capacity, BLOCK_M=16, BLOCK_N=32
    )
    return out

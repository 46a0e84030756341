"""Moves few bytes in one launch, and computes nothing.

cell: lab03_task3
points: 0
says: this counts where the result is right
"""

import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x, k, v, out, n, m, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK_M)[:, None] * 64 + tl.arange(0, 64)[None, :]
    start = tl.program_id(0) * BLOCK_M * 64
    inside = start + at < n * 64
    tl.store(
        out + head * n * 64 + start + at,
        tl.load(x + head * n * 64 + start + at, mask=inside),
        mask=inside,
    )


def causal_attention(q, k, v):
    heads, n, _ = q.shape
    out = torch.empty_like(q)
    copy_kernel[(triton.cdiv(n, 64), heads)](q, k, v, out, n, k.shape[1], BLOCK_M=64, BLOCK_N=64)
    return out

"""One scale for the whole tensor, found in a first pass.

cell: lab05_task3
points: 0
says: one scale for the whole tensor: each token and head has its own
"""

import torch
import triton
import triton.language as tl


@triton.jit
def quantize_kernel(x, codes, scale, rows, ROWS: tl.constexpr):
    largest = 0.0
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        at = row[:, None] * 64 + tl.arange(0, 64)[None, :]
        values = tl.load(x + at, mask=row[:, None] < rows, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.max(tl.abs(values), axis=1), axis=0))
    factor = tl.where(largest == 0, 1.0, largest / 127)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        at = row[:, None] * 64 + tl.arange(0, 64)[None, :]
        values = tl.load(x + at, mask=row[:, None] < rows, other=0.0).to(tl.float32)
        nearest = tl.floor(values / factor + 0.5)
        tl.store(codes + at, nearest.to(tl.int8), mask=row[:, None] < rows)
        tl.store(scale + row, tl.zeros([ROWS], tl.float32) + factor, mask=row < rows)


def quantize(x):
    """x [batch, kv_heads, tokens, 64] -> codes like x, scale [batch, kv_heads, tokens]."""
    codes = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scale = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    quantize_kernel[(1,)](x, codes, scale, scale.numel(), ROWS=16)
    return codes, scale

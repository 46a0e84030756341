"""Divides 0 by 0 where a vector is all zeros.

cell: lab05_task3
points: 7
says: a vector of zeros gets the scale 1
"""

import torch
import triton
import triton.language as tl


@triton.jit
def quantize_kernel(x, codes, scale, rows, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * 64 + tl.arange(0, 64)[None, :]
    values = tl.load(x + at, mask=row[:, None] < rows, other=0.0).to(tl.float32)
    factor = tl.max(tl.abs(values), axis=1) / 127
    nearest = tl.floor(values / factor[:, None] + 0.5)
    tl.store(codes + at, nearest.to(tl.int8), mask=row[:, None] < rows)
    tl.store(scale + row, factor, mask=row < rows)


def quantize(x):
    """x [batch, kv_heads, tokens, 64] -> codes like x, scale [batch, kv_heads, tokens]."""
    codes = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scale = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    rows = scale.numel()
    quantize_kernel[(triton.cdiv(rows, 16),)](x, codes, scale, rows, ROWS=16)
    return codes, scale

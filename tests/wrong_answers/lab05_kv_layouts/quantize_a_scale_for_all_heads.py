"""One scale a token for all its heads.

cell: lab05_task3
points: 1
says: heads share a scale: each token and head has its own
"""

import torch
import triton
import triton.language as tl


@triton.jit
def quantize_kernel(x, codes, scale, heads, tokens, HEADS: tl.constexpr):
    batch, token = tl.program_id(1), tl.program_id(0)
    head = tl.arange(0, HEADS)
    row = (batch * heads + head) * tokens + token
    at = row[:, None] * 64 + tl.arange(0, 64)[None, :]
    values = tl.load(x + at, mask=head[:, None] < heads, other=0.0).to(tl.float32)
    factor = tl.max(tl.max(tl.abs(values), axis=1), axis=0) / 127
    factor = tl.where(factor == 0, 1.0, factor)
    nearest = tl.floor(values / factor + 0.5)
    tl.store(codes + at, nearest.to(tl.int8), mask=head[:, None] < heads)
    tl.store(scale + row, tl.zeros([HEADS], tl.float32) + factor, mask=head < heads)


def quantize(x):
    """x [batch, kv_heads, tokens, 64] -> codes like x, scale [batch, kv_heads, tokens]."""
    batch, heads, tokens, _ = x.shape
    codes = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scale = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    quantize_kernel[(tokens, batch)](
        x, codes, scale, heads, tokens, HEADS=triton.next_power_of_2(heads)
    )
    return codes, scale

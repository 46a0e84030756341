"""The sum so far keeps the old maximum when a block raises it.

cell: lab03_task1
points: 1
says: the sum so far has to be rescaled
"""

import torch
import triton
import triton.language as tl


@triton.jit
def row_lse_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    largest = float("-inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        block = tl.load(x + row * columns + column, mask=column < columns, other=float("-inf"))
        new = tl.maximum(largest, tl.max(block, axis=0))
        total = total + tl.sum(tl.exp(block - new), axis=0)
        largest = new
    tl.store(out + row, largest + tl.log(total))


def row_lse(x):
    """x [rows, columns] fp32 -> log-sum-exp of each row [rows], one program a row."""
    rows, columns = x.shape
    out = torch.empty(rows, dtype=torch.float32, device=x.device)
    row_lse_kernel[(rows,)](x, out, columns, BLOCK=128)
    return out

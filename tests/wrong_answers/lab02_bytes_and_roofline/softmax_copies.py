"""Copies its input: one launch, each element once.

cell: lab02_task3
points: 0
says: this counts where the result is right
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    values = tl.load(x + row * columns + column, mask=mask, other=float("-inf"))
    tl.store(out + row * columns + column, values, mask=mask)


def softmax(x):
    """x [rows, columns] fp32 -> softmax of each row, one program a row."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    return out

"""Loads the row once for the maximum and again for the exponentials.

cell: lab02_task3
points: 7
says: each element is read 2 times
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    largest = tl.max(tl.load(x + row * columns + column, mask=mask, other=float("-inf")), axis=0)
    values = tl.load(x + row * columns + column, mask=mask, other=float("-inf"))
    exponentials = tl.exp(values - largest)
    tl.store(out + row * columns + column, exponentials / tl.sum(exponentials, axis=0), mask=mask)


def softmax(x):
    rows, columns = x.shape
    out = torch.empty_like(x)
    softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    return out

"""The running sum starts as an integer and becomes a float: the compiler refuses that.

cell: lab02_task3
points: 0
says: a GPU (sm_80) refuses it
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
    exponentials = tl.exp(values - tl.max(values, axis=0))
    total = 0
    for _ in range(columns // columns):
        total += tl.sum(exponentials, axis=0)
    tl.store(out + row * columns + column, exponentials / total, mask=mask)


def softmax(x):
    rows, columns = x.shape
    out = torch.empty_like(x)
    softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    return out

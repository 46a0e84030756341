"""Elements behind the end of the row count as zeros.

cell: lab02_task3
points: 5
says: what does `other=` of your load give?
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    values = tl.load(x + row * columns + column, mask=mask, other=0.0)
    exponentials = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + column, exponentials / tl.sum(exponentials, axis=0), mask=mask)


def softmax(x):
    rows, columns = x.shape
    out = torch.empty_like(x)
    softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    return out

"""Hides the diagonal as well: a query does not see its own key.

cell: lab02_task4
points: 0
says: is the comparison off by one?
"""

import torch
import triton
import triton.language as tl


@triton.jit
def causal_softmax_kernel(scores, out, n, m, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    seen = column < m - n + row
    values = tl.load(scores + row * m + column, mask=seen, other=float("-inf")) * scale
    exponentials = tl.exp(values - tl.max(values, axis=0))
    total = tl.sum(exponentials, axis=0)
    tl.store(out + row * m + column, exponentials / total, mask=column < m)


def causal_softmax(scores, scale):
    n, m = scores.shape
    out = torch.empty_like(scores)
    causal_softmax_kernel[(n,)](scores, out, n, m, scale, BLOCK=triton.next_power_of_2(m))
    return out

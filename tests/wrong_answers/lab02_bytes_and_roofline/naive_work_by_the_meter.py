"""Asks the meter, which is what the test does.

cell: lab02_task1
points: 0
error: RuntimeError
says: not by the meter
"""

import torch

from kernelbook import meter
from kernelbook.work import Work


def naive_work(n, m, d, element_bytes):
    dtype = torch.float32 if element_bytes == 4 else torch.bfloat16
    inputs = [torch.ones(rows, d, dtype=dtype) for rows in (n, m, m)]
    counts = meter.count(lambda *x: torch.softmax(x[0] @ x[1].T, dim=-1) @ x[2], *inputs)
    return Work(counts.flops, counts.read, counts.written)

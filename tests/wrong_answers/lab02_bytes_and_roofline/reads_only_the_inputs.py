"""Forgets that scores and weights are read back, and counts a multiply-add as one FLOP.

cell: lab02_task1
points: 2
says: the scores and the weights come back from HBM too
"""

from kernelbook.work import Work


def naive_work(n, m, d, element_bytes):
    read = n * d + 2 * m * d
    written = 2 * n * m + n * d
    return Work(2 * n * m * d, read * element_bytes, written * element_bytes)

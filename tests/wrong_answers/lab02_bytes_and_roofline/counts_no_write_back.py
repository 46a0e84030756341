"""Counts the output alone as written: scores and weights go to HBM too.

cell: lab02_task1
points: 4
says: the scores and the weights are written to HBM too
"""

from kernelbook.work import Work


def naive_work(n, m, d, element_bytes):
    read = (n * d + m * d) + n * m + (n * m + m * d)
    written = n * d
    return Work(4 * n * m * d, read * element_bytes, written * element_bytes)

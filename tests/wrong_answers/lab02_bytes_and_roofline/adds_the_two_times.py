"""Adds arithmetic and traffic, which overlap.

cell: lab02_task2
points: 4
says: take the longer time, not the sum
"""


def place(flops, nbytes, flops_per_s, bytes_per_s):
    compute, hbm = flops / flops_per_s, nbytes / bytes_per_s
    return flops / nbytes, "compute" if compute > hbm else "HBM", compute + hbm

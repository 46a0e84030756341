"""Calls a kernel compute-bound when it has more FLOPs than bytes, whatever the machine.

cell: lab02_task2
points: 4
says: compare two times, not FLOPs with bytes
"""


def place(flops, nbytes, flops_per_s, bytes_per_s):
    bound = "compute" if flops > nbytes else "HBM"
    return flops / nbytes, bound, max(flops / flops_per_s, nbytes / bytes_per_s)

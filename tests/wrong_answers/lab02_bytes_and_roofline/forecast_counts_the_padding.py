"""Counts the FLOPs of the empty part of the last tile.

cell: lab02_task5
points: 3
says: padding does not count
"""

from kernelbook.work import Work


def forecast(batch, heads, n, m, d, element_bytes, machine):
    pairs, tiles = batch * heads, -(-n // 64)
    moved = pairs * d * element_bytes
    work = Work(pairs * 4 * tiles * 64 * m * d, moved * (n + 2 * m), moved * n)
    return work.bound(machine), pairs * tiles, max(0, machine.sms - pairs * tiles)

"""Rounds the number of query tiles down, so decode has no program at all.

cell: lab02_task5
points: 2
says: a tile that is not full needs a program too
"""

from kernelbook.work import Work


def forecast(batch, heads, n, m, d, element_bytes, machine):
    moved = batch * heads * d * element_bytes
    work = Work(batch * heads * 4 * n * m * d, moved * (n + 2 * m), moved * n)
    programs = batch * heads * (n // 64)
    return work.bound(machine), programs, max(0, machine.sms - programs)

"""Adds a wave to whole waves: 132 programs on 132 SMs take 2.

cell: lab04_task1
points: 4
says: 132 programs fill 132 SMs exactly once
"""


def by_head(batch, heads, kv_heads, length, sms):
    """(programs, waves, bytes of keys and values asked for) of one program a query head."""
    programs = batch * heads
    return programs, programs // sms + 1, programs * length * 2 * 64 * 2


def by_split(batch, heads, kv_heads, length, splits, sms):
    """(programs, waves, bytes of keys and values asked for, bytes of partial results moved)."""
    programs = batch * kv_heads * splits
    partial = batch * heads * splits * (64 + 1) * 4
    return programs, programs // sms + 1, batch * kv_heads * length * 2 * 64 * 2, 2 * partial

"""Counts partial results as written, not as read again.

cell: lab04_task1
points: 5
says: they are written and read again
"""

import triton


def by_head(batch, heads, kv_heads, length, sms):
    """(programs, waves, bytes of keys and values asked for) of one program a query head."""
    programs = batch * heads
    return programs, triton.cdiv(programs, sms), programs * length * 2 * 64 * 2


def by_split(batch, heads, kv_heads, length, splits, sms):
    """(programs, waves, bytes of keys and values asked for, bytes of partial results moved)."""
    programs = batch * kv_heads * splits
    partial = batch * heads * splits * (64 + 1) * 4
    return programs, triton.cdiv(programs, sms), batch * kv_heads * length * 2 * 64 * 2, partial

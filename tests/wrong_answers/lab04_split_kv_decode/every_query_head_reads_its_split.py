"""Lets each query head ask for keys and values, split or not.

cell: lab04_task1
points: 5
says: one program serves the group: each key and value is asked for once
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
    return programs, triton.cdiv(programs, sms), batch * heads * length * 2 * 64 * 2, 2 * partial

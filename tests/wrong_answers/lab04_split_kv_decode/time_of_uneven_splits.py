"""Cuts the keys evenly, so that more tiles than there are have to be loaded.

cell: lab04_task4
points: 3
says: a split holds whole tiles
"""

import triton


def launch_time(lengths, kv_heads, splits, sms):
    """Time of split-KV decode by the model above, in tiles."""
    times = []
    for length in lengths:
        times += [2 + triton.cdiv(triton.cdiv(length, splits), 64)] * splits * kv_heads
    return finish(times, sms) + (4 + splits // 16 if splits > 1 else 0)  # noqa: F821 (the lab gives it)


def choose_splits(lengths, kv_heads, sms):
    """The fewest splits among those that take the least time."""
    most = min(128, triton.cdiv(max(lengths), 64))
    return min(range(1, most + 1), key=lambda splits: launch_time(lengths, kv_heads, splits, sms))

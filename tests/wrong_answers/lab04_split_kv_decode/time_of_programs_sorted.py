"""Starts the longest programs first.

cell: lab04_task4
points: 3
says: another order of the programs
"""

import triton


def launch_time(lengths, kv_heads, splits, sms):
    """Time of split-KV decode by the model above, in tiles."""
    times = []
    for length in lengths:
        tiles = triton.cdiv(length, 64)
        each = triton.cdiv(tiles, splits)
        times += [2 + min(each, tiles - first) for first in range(0, tiles, each)] * kv_heads
    return finish(sorted(times, reverse=True), sms) + (4 + splits // 16 if splits > 1 else 0)  # noqa: F821 (the lab gives it)


def choose_splits(lengths, kv_heads, sms):
    """The fewest splits among those that take the least time."""
    most = min(128, triton.cdiv(max(lengths), 64))
    return min(range(1, most + 1), key=lambda splits: launch_time(lengths, kv_heads, splits, sms))

"""Takes the most splits among those that take the least time.

cell: lab04_task4
points: 4
says: more splits than needed: 8 take as long
"""

import triton


def launch_time(lengths, kv_heads, splits, sms):
    """Time of split-KV decode by the model above, in tiles."""
    times = []
    for length in lengths:
        tiles = triton.cdiv(length, 64)
        each = triton.cdiv(tiles, splits)
        times += [2 + min(each, tiles - first) for first in range(0, tiles, each)] * kv_heads
    return finish(times, sms) + (4 + splits // 16 if splits > 1 else 0)  # noqa: F821 (the lab gives it)


def choose_splits(lengths, kv_heads, sms):
    """The fewest splits among those that take the least time."""
    most = min(128, triton.cdiv(max(lengths), 64))
    return min(range(most, 0, -1), key=lambda splits: launch_time(lengths, kv_heads, splits, sms))

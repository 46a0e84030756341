"""How many parts to cut each sequence's keys into, so that a launch ends soonest."""

from functools import lru_cache

MOST_SPLITS = 256  # one latent row for all heads: only parts fill the SMs at batch 1
OVERHEAD = 2  # a program's start and its partial result, in tiles' time


@lru_cache(maxsize=4096)
def splits_for(programs: int, tiles: int, slots: int) -> int:
    """Parts to cut `tiles` tiles into, so that `programs` × parts end soonest on `slots` places.

    Time in tiles: waves × (the longest part + overhead). Fewest parts among equals.
    """

    def time(parts):
        return -(-programs * parts // slots) * (-(-tiles // parts) + OVERHEAD)

    return min(
        range(1, max(1, min(MOST_SPLITS, tiles)) + 1), key=lambda parts: (time(parts), parts)
    )

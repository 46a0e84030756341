"""Amdahl's law: what a faster block does to the whole step.

With p the block's share of the step's time and s how many times faster the block gets,

    S = 1 / ((1 - p) + p / s)        and, however large s, S < 1 / (1 - p).

Source: G. Amdahl, Validity of the single processor approach, AFIPS 1967.
"""

import math


def _checked_share(p: float) -> float:
    if not 0 <= p <= 1:
        raise ValueError(f"a share lies between 0 and 1, got {p}")
    return p


def _checked_speedup(s: float) -> float:
    if not s > 0:
        raise ValueError(f"a speedup is a positive ratio before / after, got {s}")
    return s


def share(part: float, whole: float) -> float:
    """p: the fraction of the whole that a part takes, both in one unit (µs, say)."""
    if not 0 <= part <= whole or whole <= 0:
        raise ValueError(f"a part lies between 0 and its whole, got {part} of {whole}")
    return part / whole


def speedup(p: float, s: float) -> float:
    """S = 1 / ((1 - p) + p / s): the whole's speedup when a share p gets s times faster."""
    return 1 / ((1 - _checked_share(p)) + p / _checked_speedup(s))


def limit(p: float) -> float:
    """1 / (1 - p): the speedup that even an infinitely fast block cannot exceed."""
    return math.inf if _checked_share(p) == 1 else 1 / (1 - p)


def predicted_share_after(p: float, s: float) -> float:
    """The block's share once it is s times faster: (p / s) / ((1 - p) + p / s)."""
    return (_checked_share(p) / s) * speedup(p, s)

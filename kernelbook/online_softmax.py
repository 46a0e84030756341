"""Online softmax, block by block, in plain Python: what tiled attention keeps on chip.

For each block of scores s (and values v):

    m' = max(m, max(s))        r = exp(m - m')        p = exp(s - m')
    l' = r l + sum(p)          acc' = r acc + p v     after the last block: out = acc / l

Source: M. Milakov, N. Gimelshein, Online normalizer calculation for softmax, 2018.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernelbook import tables


@dataclass(frozen=True)
class Step:
    """State after one block.

    block   the block's scores.        maximum  m', the largest score so far.
    rescale r, what earlier sums are multiplied by (1 where the maximum stands).
    total   l', the sum of exp(score - maximum) so far.
    acc     acc', the same sum weighted by the values; None without values.
    """

    start: int
    block: tuple[float, ...]
    maximum: float
    rescale: float
    total: float
    acc: float | None


def softmax_steps(
    scores: Sequence[float], block: int, values: Sequence[float] | None = None
) -> list[Step]:
    """The state after each block of `block` scores; scores may be -inf (masked).

    Raises ValueError for a block below 1, no scores, or more or fewer values than scores.
    """
    if block < 1 or not scores:
        raise ValueError(f"need scores and a block of 1 or more, got {len(scores)} and {block}")
    if values is not None and len(values) != len(scores):
        raise ValueError(f"each score takes one value, got {len(scores)} and {len(values)}")
    m, total, acc = -math.inf, 0.0, 0.0
    steps = []
    for start in range(0, len(scores), block):
        s = tuple(float(score) for score in scores[start : start + block])
        new = max(m, *s)
        # While everything is masked, new is -inf, and -inf - -inf would be NaN.
        safe = 0.0 if new == -math.inf else new
        rescale = math.exp(m - safe) if m > -math.inf else (1.0 if new == m else 0.0)
        p = [math.exp(score - safe) for score in s]
        total = rescale * total + sum(p)
        if values is not None:
            weighted = zip(p, values[start : start + block], strict=True)
            acc = rescale * acc + sum(weight * value for weight, value in weighted)
        m = new
        steps.append(Step(start, s, m, rescale, total, None if values is None else acc))
    return steps


def softmax_table(steps: Sequence[Step]) -> str:
    """The steps as plain text, three decimals."""
    with_values = steps[0].acc is not None
    rows = []
    for step in steps:
        last = step.start + len(step.block) - 1
        numbers = [step.maximum, step.rescale, step.total] + [step.acc] * with_values
        block = " ".join(f"{score:g}" for score in step.block)
        rows.append([f"{step.start}..{last}", block, *(f"{number:.3f}" for number in numbers)])
    header = ["scores", "block", "max m", "rescale", "sum l"] + ["acc"] * with_values
    table = tables.plain(header, rows, left=2)
    out = f"\nout = acc / l = {steps[-1].acc / steps[-1].total:.3f}" if with_values else ""
    return table + out

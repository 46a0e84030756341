"""Persistent programs against plain launches where waves come out even and where they do not.

`plain`: a program for each KV head of each sequence. `persistent`: a program for each SM, which
takes one item after another. `splits_n`: a plain launch of n times as many programs, each an n-th
as long, the other cure of a tail; `split`: with the number of splits chosen by default.
"""

from functools import partial

from benchmarks import _decode as bench
from benchmarks import _warm

BATCHES = (8, 16, 18, 35, 49, 50)  # × 8 KV heads: 0.48, 0.97, 1.09, 2.12, 2.97, 3.03 waves of 132
LENGTHS = (512, 4096)
SPLITS = (2, 4, 8)


def shapes() -> list[dict]:
    return [bench.shape_of(batch, length) for length in LENGTHS for batch in BATCHES]


def splits_of(shape: dict) -> dict[str, int]:
    """variant -> number of splits."""
    more = {f"splits_{n}": n for n in SPLITS if bench.used_splits(shape, n) == n}
    return {"plain": 1, "persistent": 1, "split": bench.chosen_splits(shape), **more}


def variants(shape: dict) -> dict:
    return {
        name: partial(bench.split, splits=n, persistent=name == "persistent")
        for name, n in splits_of(shape).items()
    }


def extra(shape: dict) -> dict:
    """Programs of each variant; items and waves are those of the plain launch."""
    items, sms = bench.programs(shape, 1), bench.sms()
    facts = {"items": items, "sms": sms, "waves": round(items / sms, 3)}
    fields = {
        name: {**facts, "programs": bench.programs(shape, n), "splits": n}
        for name, n in splits_of(shape).items()
    }
    fields["persistent"]["programs"] = min(items, sms)
    return fields


def compile_all() -> None:
    calls = []
    for shape in shapes():
        tensors = bench.inputs(bench.small(shape))
        calls += [partial(call, *tensors) for call in variants(shape).values()]
    _warm.compile_all(calls)


def run(writer) -> None:
    """Half a wave to three, at a short and a longer context."""
    if not bench.has_gpu("decode_persistent"):
        return
    compile_all()
    for shape in shapes():
        facts = extra(shape)
        found = bench.measure(
            writer, "decode_persistent", shape, variants(shape), facts
        )  # fmt: skip
        times, waves = bench.times_in_words(found), facts["plain"]["waves"]
        bench.say(f"{waves} waves x {shape['lengths']} tokens: {times}")

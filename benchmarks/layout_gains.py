"""Are model, memory and kernel three independent switches?

(GQA, MLA) × (contiguous, paged) × (bf16, int8): eight cells at the same batch, context and 32 query
heads. A cell may change which tile and how many splits are best, so each gets a handful of both to
choose from. The best of each are then timed in one run, beside the launcher's own choice
(`default_us`) and the choice that is best for the plain cache of the same model (`first_tile_us`):
what a kernel loses that is not told of the layout.
"""

from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from benchmarks import _cells, _kv, _rotated, _warm
from benchmarks._cells import CELLS, Cell
from kernelbook import backend, interpreter, timing
from kernelbook.kernels import _split_launch
from kernelbook.kernels import attention_mla as mla

CASES = ((16, 8192), (1, 8192))  # batch, context
FIELDS = ("block_m", "block_n", "num_warps", "num_stages")
SHORT = {"min_ms": 4, "warmup_ms": 1, "rounds": 2}  # to choose by, not to quote
TILES = {
    ("gqa", "bf16"): ((16, 128, 4, 3), (16, 64, 4, 4), (16, 64, 4, 3), (16, 128, 8, 3)),
    ("gqa", "int8"): ((16, 64, 4, 3), (16, 64, 4, 4), (16, 128, 4, 3), (16, 128, 8, 3)),
    ("mla", "bf16"): ((32, 64, 8, 2), (32, 32, 8, 3), (32, 32, 4, 3), (16, 64, 4, 3)),
    ("mla", "int8"): ((32, 32, 8, 2), (32, 64, 8, 2), (32, 32, 8, 3), (16, 64, 8, 3)),
}


class Choice(NamedTuple):
    """What a launcher decides: its tile (as FIELDS) and the number of splits."""

    tile: tuple[int, ...]
    splits: int


# --- choices -------------------------------------------------------------------------------


@contextmanager
def launching(model: str, tile=None, splits=None):
    """The launchers with this tile and these splits, or with their own; yields what they took."""
    module, names = (mla, ("config", "splits"))
    if model == "gqa":
        module, names = (_split_launch, ("config", "choose_splits"))
    own = [getattr(module, name) for name in names]
    taken = {}

    def config(*args, **kwargs):
        found = own[0](*args, **kwargs)
        found = found if tile is None else found._replace(**dict(zip(FIELDS, tile, strict=True)))
        taken["tile"] = tuple(getattr(found, field) for field in FIELDS)
        return found

    def number(*args, **kwargs):
        taken["splits"] = own[1](*args, **kwargs) if splits is None else splits
        return taken["splits"]

    for name, function in zip(names, (config, number), strict=True):
        setattr(module, name, function)
    try:
        yield taken
    finally:
        for name, function in zip(names, own, strict=True):
            setattr(module, name, function)


def chosen(cell: Cell, choice: Choice, x):
    """A cell's attention with a choice of ours."""
    with launching(cell.model, *choice):
        return _cells.attend(cell, x)


def own_choice(cell: Cell, x, tile=None) -> Choice:
    """What the launcher takes, or with a tile of ours, the splits that it takes then."""
    with launching(cell.model, tile) as taken, interpreter.capture_launches():
        _cells.attend(cell, x)
    return Choice(taken["tile"], taken["splits"])


def choices(cell: Cell, x) -> list[Choice]:
    """The launcher's own first, then a few tiles, each with half, all and twice its splits."""
    found = [own_choice(cell, x)]
    for tile in (found[0].tile, *TILES[cell.model, cell.kv]):
        own = own_choice(cell, x, tile).splits
        found += [Choice(tile, n) for n in (max(1, own // 2), own, 2 * own)]
    return list(dict.fromkeys(found))


# --- measuring -----------------------------------------------------------------------------


def timed(calls: dict, sets, bytes_each: int, **options) -> dict:
    """Timings of calls that take a whole set, in graphs."""
    few = {"calls": 4} if bytes_each > 2**27 else {}
    bound = {name: sets.bind(call) for name, call in calls.items()}
    return timing.side_by_side(bound, graph=True, **few, **options)


def sweep(cell: Cell, x, sets, bytes_each: int) -> dict[Choice, timing.Timing]:
    """A short timing of each choice that gives the right numbers."""
    calls = {choice: partial(chosen, cell, choice) for choice in choices(cell, *x)}
    reference = partial(_cells.expected, cell)
    right = _rotated.passing(calls, x, dict.fromkeys(calls, reference))
    return timed(right, sets, bytes_each, **SHORT)


def finalists(cell: Cell, found: dict, first: Choice, x) -> dict[str, Choice]:
    """best, default and first, where they run; equal ones are timed once, as the best."""
    best = min(found, key=lambda choice: found[choice].median_us)
    named = {"best": best, "default": own_choice(cell, *x), "first": first}
    calls = {choice: partial(chosen, cell, choice) for choice in named.values()}
    reference = partial(_cells.expected, cell)
    right = _rotated.passing(calls, x, dict.fromkeys(calls, reference))
    return {name: choice for name, choice in named.items() if choice in right}


def measure(writer, batch: int, length: int) -> None:
    """All choices of each cell briefly, then the best, default and first of all cells in turn."""
    shape = {"batch": batch, "lengths": length, "query_heads": _kv.HEADS["query_heads"]}
    works = {cell: _cells.work_of(cell, batch, length) for cell in CELLS}
    least = min(work.bytes for work in works.values())
    sets = timing.rotate(partial(_cells.inputs, batch, length), bytes_each=least)
    x = sets.sets[0]
    every = [partial(chosen, cell, choice) for cell in CELLS for choice in choices(cell, *x)]
    _warm.compile_all(every, *x)
    tried, last, first = {}, {}, {}
    for cell in CELLS:
        tried[cell] = sweep(cell, x, sets, least)
        if not tried[cell]:
            continue
        best = min(tried[cell], key=lambda choice, cell=cell: tried[cell][choice].median_us)
        last[cell] = finalists(cell, tried[cell], first.setdefault(cell.model, best), x)
    calls = {
        (cell, choice): partial(chosen, cell, choice)
        for cell, named in last.items()
        for choice in named.values()
    }
    found = timed(calls, sets, least, min_ms=20, warmup_ms=6)
    for cell, named in last.items():
        times = {name: found[cell, choice] for name, choice in named.items()}
        record(writer, cell, shape, named, times, works[cell], len(tried[cell]))
        record_tries(writer, cell, shape, tried[cell], works[cell])


def record(writer, cell: Cell, shape: dict, named: dict, times: dict, work, tried: int) -> None:
    """The best choice's row; the other two as numbers in it."""
    best = named["best"]
    extra = {"tile": list(best.tile), "splits": best.splits, "tried": tried}
    if "default" in named:
        tile, splits = named["default"]
        extra |= {"default_us": round(times["default"].median_us, 4)}
        extra |= {"default_tile": list(tile), "default_splits": splits}
    if "first" in named:
        extra |= {"first_tile_us": round(times["first"].median_us, 4)}
    print(
        f"{shape['batch']:3} x {shape['lengths']} {cell.name:21} {times['best'].median_us:8.1f} us "
        f"{times['best'].per_s(work.bytes) / 1e12:5.2f} TB/s, {best}, of {tried}; "
        f"default {extra.get('default_us')}, first {extra.get('first_tile_us')}"
    )
    writer.add(
        op="layout_gains", variant=cell.name, shape=shape, dtype=_kv.DTYPE, timing=times["best"],
        work=work, **cell._asdict(), **extra,
    )  # fmt: skip


def record_tries(writer, cell: Cell, shape: dict, found: dict, work) -> None:
    for choice, time in found.items():
        tile = dict(zip(FIELDS, choice.tile, strict=True))
        writer.add(
            op="layout_gains_tiles", variant=cell.name, dtype=_kv.DTYPE, timing=time, work=work,
            shape={**shape, **tile, "splits": choice.splits}, **cell._asdict(),
        )  # fmt: skip


def run(writer) -> None:
    """16 sequences, then one; without a GPU nothing."""
    if not backend.GPU:
        print("layout_gains: skipped, no GPU")
        return
    for case in CASES:
        measure(writer, *case)

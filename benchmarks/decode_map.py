"""Where splitting pays: context × batch × KV heads × layout, against no splits and against SDPA.

Contiguous and paged KV (16 tokens a page, pages in random order) are the same memory read in two
ways, timed in turn. Paged KV's peer copies the pages together and calls cuDNN. Where the chosen
number of splits is 1, `one_split` is the same launch and is not measured again.
"""

import time
from functools import partial

from benchmarks import _decode as bench
from benchmarks import _kv, _rotated, _warm
from kernelbook.kernels import attention_paged as paged

PAGE = 16
BATCHES = (1, 4, 16, 64)
LENGTHS = (512, 2048, 8192, 32768)
LONGEST, LONGEST_BATCHES = 131072, (1, 4)
KV_HEADS = (8, 1, 32)  # of 32 query heads
GATHERED = 2**32  # bytes of KV up to which pages are copied together
LIMIT_S = 100  # seconds after which the shapes that are left are left out


def shapes() -> list[dict]:
    """8 KV heads first, and short contexts before long ones."""
    sizes = [(b, n) for n in LENGTHS for b in BATCHES] + [(b, LONGEST) for b in LONGEST_BATCHES]
    return [
        {**bench.shape_of(batch, length), "kv_heads": heads}
        for heads in KV_HEADS
        for batch, length in sizes
    ]


def inputs(shape: dict) -> tuple:
    """q, contiguous k and v, a table that takes their memory as shuffled pages, and lengths."""
    batch, length = shape["batch"], shape["lengths"]
    table = _kv.table_of(batch, length // PAGE)
    return *bench.inputs(shape), table, _kv.lengths_of(batch, length)


def pools(k, v):
    """The memory of k and v taken as pages."""
    return _kv.pool(k, PAGE), _kv.pool(v, PAGE)


def contiguous(splits: int, q, k, v, table, lengths):
    return bench.split(q, k, v, splits=splits)


def on_pages(splits: int, q, k, v, table, lengths):
    return paged.attention_paged(q, *pools(k, v), table, lengths, splits=splits)


def of_contiguous(call, q, k, v, table, lengths):
    return call(q, k, v)


def gathered(q, k, v, table, lengths):
    return bench.cudnn(q, *(paged.gather(x, table) for x in pools(k, v)))


def expected_on_pages(q, k, v, table, lengths):
    """The sampled sequences in float64."""
    some = _rotated.sample(len(q))
    k, v = (paged.gather(x, table[some]) for x in pools(k, v))
    return bench.expected(q[some], k, v)


EXPECTED = {"contiguous": bench.expected, "paged": expected_on_pages}


def splits_of(shape: dict, layout: str) -> int:
    return bench.chosen_splits(shape, PAGE if layout == "paged" else 0)


def variants(shape: dict) -> dict:
    """(layout, variant) -> call."""
    calls = {}
    for layout, call in (("contiguous", contiguous), ("paged", on_pages)):
        splits = splits_of(shape, layout)
        calls[layout, "split"] = partial(call, splits)
        if splits > 1:
            calls[layout, "one_split"] = partial(call, 1)
    calls["contiguous", "sdpa_cudnn"] = partial(of_contiguous, bench.cudnn)
    calls["contiguous", "sdpa_flash"] = partial(of_contiguous, bench.flash)
    if bench.work_of(shape).read <= GATHERED:
        calls["paged", "gather_cudnn"] = gathered
    return calls


def work_of(shape: dict, layout: str):
    if layout == "contiguous":
        return bench.work_of(shape)
    sizes = {**shape, "lengths": [shape["lengths"]] * shape["batch"]}
    return paged.work(**sizes, dtype=bench.DTYPE, page_size=PAGE)


def cell(writer, shape: dict) -> str:
    """All layouts and variants at one shape; its line of the table."""
    calls, make = variants(shape), partial(inputs, shape)
    answers = {key: EXPECTED[key[0]] for key in calls}
    found = bench.in_turn(calls, make, bench.work_of(shape).bytes, answers, min_ms=8)
    for (layout, variant), timing in found.items():
        extra = {}
        if variant not in bench.PEERS:
            splits = splits_of(shape, layout) if variant == "split" else 1
            extra = {"splits": splits, "programs": bench.programs(shape, splits)}
            extra["sms"] = bench.sms()
        bench.add(
            writer, "decode_map", {**shape, "layout": layout}, variant, timing,
            work_of(shape, layout), **extra,
        )  # fmt: skip
    return line(shape, {key: timing.median_us for key, timing in found.items()})


def line(shape: dict, us: dict) -> str:
    """A split's gain over each alternative."""
    text = f"{shape['kv_heads']:2} KV heads, {shape['batch']:2} x {shape['lengths']:6}:"
    for layout in ("contiguous", "paged"):
        mine = us.get((layout, "split"))
        gains = {name: t for (of, name), t in us.items() if of == layout and name != "split"}
        if mine:
            text += f" {layout} {mine:.1f} us, gain over"
            text += "".join(f" {name} {t / mine:.2f}" for name, t in gains.items()) + ";"
    return text


def compile_all() -> None:
    """Every kernel of the map once, on few keys with the numbers of splits of the real shapes."""
    kinds = {}
    for shape in shapes():  # one of a kind: tiles, heads and splits
        for splits in (1, bench.chosen_splits(shape)):
            kinds[shape["kv_heads"], bench.tiles_of(shape)[0], splits] = shape
    calls = []
    for (_, _, splits), shape in kinds.items():
        tensors = inputs(bench.small(shape))
        calls += [partial(call, splits, *tensors) for call in (contiguous, on_pages)]
    _warm.compile_all(calls)


def run(writer) -> None:
    """Shape after shape, until `LIMIT_S`."""
    if not bench.has_gpu("decode_map"):
        return
    began = time.perf_counter()
    compile_all()
    for shape in shapes():
        if time.perf_counter() - began > LIMIT_S:
            bench.say(f"out of time from {shape['kv_heads']} KV heads, {shape['lengths']} on")
            break
        bench.say(cell(writer, shape))

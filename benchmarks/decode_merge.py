"""The price of splitting: partial results written and read, and the time that merging takes.

`last`: the last program of a group merges. `kernel`: a second launch does, which starts while the
first one ends. `no_merge`: the first launch alone, whose partial results nobody reads; the
difference to it is the time of the merge.
"""

from contextlib import contextmanager
from functools import partial

from benchmarks import _decode as bench
from benchmarks import _warm
from kernelbook.kernels import _split_launch
from kernelbook.kernels import attention_decode as decode

ROWS = ((1, 8192), (1, 32768), (8, 8192))
SPLITS = (1, 2, 4, 8, 16, 32, 64)


class _Nothing:
    """Stands in for a kernel that is not launched."""

    def __getitem__(self, grid):
        return lambda *arguments, **options: None


@contextmanager
def without_merge_kernel():
    """The launcher stops after its first kernel."""
    merge = _split_launch.merge_kernel
    _split_launch.merge_kernel = _Nothing()
    try:
        yield
    finally:
        _split_launch.merge_kernel = merge


def no_merge(q, k, v, splits: int):
    """Partial results only: what is returned was never written."""
    with without_merge_kernel():
        return bench.split(q, k, v, splits=splits, merge="kernel")


def variants(splits: int) -> dict:
    return {
        "last": partial(bench.split, splits=splits, merge="last"),
        "kernel": partial(bench.split, splits=splits, merge="kernel"),
        "no_merge": partial(no_merge, splits=splits),
    }


def partial_bytes(shape: dict, splits: int) -> dict[str, int]:
    """Bytes of partial results that each variant writes and reads back."""
    rows = shape["query_heads"] // shape["kv_heads"] * shape["queries"]
    lengths = [shape["lengths"]] * shape["batch"]
    sizes = (shape["kv_heads"], rows, lengths, shape["head_dim"], splits, bench.tiles_of(shape)[0])
    merged = {name: decode.merge_work(*sizes, merge=name) for name in ("last", "kernel")}
    moved = {name: work.bytes for name, work in merged.items()}
    return moved | {"no_merge": merged["kernel"].written}


def kv_bytes(shape: dict) -> int:
    tokens = shape["batch"] * shape["lengths"]
    return 2 * tokens * shape["kv_heads"] * shape["head_dim"] * bench.DTYPE.itemsize


def row(writer, shape: dict, splits: int) -> dict:
    """The three variants with one number of splits."""
    answers = dict.fromkeys(("last", "kernel"), bench.expected)  # no_merge gives none
    make, moves = partial(bench.inputs, shape), bench.work_of(shape).bytes
    found = bench.in_turn(variants(splits), make, moves, answers)
    moved = partial_bytes(shape, splits)
    facts = {"kv_bytes": kv_bytes(shape), "sms": bench.sms()}
    facts["programs"] = bench.programs(shape, splits)
    for variant, time in found.items():
        bench.add(
            writer, "decode_merge", {**shape, "splits": splits}, variant, time,
            bench.work_of(shape), partial_bytes=moved[variant], **facts,
        )  # fmt: skip
    return found


def compile_all() -> None:
    calls = []
    for batch, length in ROWS:
        tensors = bench.inputs(bench.small(bench.shape_of(batch, length)))
        for splits in SPLITS:
            calls += [partial(call, *tensors) for call in variants(splits).values()]
    _warm.compile_all(calls)


def run(writer) -> None:
    """Each shape with 1 to 64 splits."""
    if not bench.has_gpu("decode_merge"):
        return
    compile_all()
    for batch, length in ROWS:
        shape = bench.shape_of(batch, length)
        for splits in SPLITS:
            found = row(writer, shape, splits)
            share = partial_bytes(shape, splits)["last"] / kv_bytes(shape)
            times = bench.times_in_words(found)
            bench.say(f"{batch} x {length}, {splits} splits: {times}, {share:.2%} more bytes")

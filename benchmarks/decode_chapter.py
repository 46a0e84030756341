"""Chapter 04's own two kernels beside the tuned one, the prefill kernel and cuDNN's; a trace.

What is measured is what the reader reads: the kernels are taken from the chapter.
"""

from functools import partial
from pathlib import Path

from benchmarks import _decode as bench
from benchmarks import _warm
from benchmarks._chapter import built_in
from kernelbook import timeline
from kernelbook.kernels.attention_prefill import attention_prefill

TRACE = Path(__file__).resolve().parents[1] / "data" / "traces" / "decode_chapter.json.gz"
SHAPES = ((1, 2048), (1, 8192), (1, 32768), (1, 131072), (8, 8192), (64, 8192))
TRACED = (1, 32768)


def splits_of(chapter, shape: dict) -> int:
    """The number of splits that the chapter's own rule chooses on this GPU."""
    return chapter.splits_for(shape["batch"], shape["kv_heads"], shape["lengths"], bench.sms())


def variants(chapter, shape: dict) -> dict:
    return {
        "prefill_kernel": attention_prefill,
        "chapter": partial(chapter.split_kv, splits=splits_of(chapter, shape)),
        "split_kv": partial(bench.split, splits=bench.chosen_splits(shape)),
        "sdpa_cudnn": bench.cudnn,
    }


def extra(chapter, shape: dict) -> dict:
    """Splits of the two that split."""
    return {
        "chapter": {"splits": splits_of(chapter, shape)},
        "split_kv": {"splits": bench.chosen_splits(shape)},
    }


def compile_all(chapter) -> None:
    calls = []
    for batch, lengths in SHAPES:
        shape = bench.shape_of(batch, lengths)
        small = bench.inputs(shape | {"batch": 1, "lengths": 256})
        calls += [partial(call, *small) for call in variants(chapter, shape).values()]
    _warm.compile_all(calls)


def trace(chapter) -> None:
    """Save what the profiler saw of one call of each, one after another."""
    shape = bench.shape_of(*TRACED)
    tensors, functions = bench.inputs(shape), variants(chapter, shape)

    def one_of_each():
        for function in functions.values():
            function(*tensors)

    TRACE.parent.mkdir(parents=True, exist_ok=True)
    timeline.profile(one_of_each).save(TRACE)


def run(writer) -> None:
    """All shapes, then the trace; without a GPU nothing."""
    if not bench.has_gpu("decode_chapter"):
        return
    chapter = built_in("04")
    compile_all(chapter)
    lines = []
    for sizes in SHAPES:
        shape = bench.shape_of(*sizes)
        calls = variants(chapter, shape)
        found = bench.measure(writer, "decode_chapter", shape, calls, extra(chapter, shape))
        lines.append(f"{sizes[0]} x {sizes[1]}: {bench.times_in_words(found)}")
    bench.table("decode_chapter", lines)
    trace(chapter)

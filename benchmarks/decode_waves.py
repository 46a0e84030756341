"""The prefill kernel on decode's shapes: one query makes a program for each head, most SMs idle.

Beside it split-KV decode, attention in three kernels with the scores written out, and SDPA.
"""

from functools import partial

from benchmarks import _decode as bench
from benchmarks import _warm
from kernelbook.kernels.attention_naive import attention_naive
from kernelbook.kernels.attention_prefill import attention_prefill

LENGTHS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
BATCHES = (4, 16, 64)  # at LENGTH
LENGTH = 8192


def shapes() -> list[dict]:
    long = [bench.shape_of(1, length) for length in LENGTHS]
    return long + [bench.shape_of(batch, LENGTH) for batch in BATCHES]


def variants(shape: dict) -> dict:
    return {
        "prefill_kernel": attention_prefill,
        "split_kv": partial(bench.split, splits=bench.chosen_splits(shape)),
        "naive": attention_naive,
        "sdpa_cudnn": bench.cudnn,
        "sdpa_flash": bench.flash,
    }


def extra(shape: dict) -> dict:
    """Programs and waves of the two tiled kernels."""
    sms, splits = bench.sms(), bench.chosen_splits(shape)
    heads, split = shape["batch"] * shape["query_heads"], bench.programs(shape, splits)
    fields = {
        "prefill_kernel": {"programs": heads},
        "split_kv": {"programs": split, "splits": splits},
    }
    for of_variant in fields.values():
        of_variant |= {"sms": sms, "waves": round(of_variant["programs"] / sms, 3)}
    return fields


def compile_all() -> None:
    """Each variant of each shape, on few keys."""
    calls = []
    for shape in shapes():
        tensors, all_calls = bench.inputs(bench.small(shape)), variants(shape)
        own = [call for name, call in all_calls.items() if name not in bench.PEERS]
        calls += [partial(call, *tensors) for call in own]
    _warm.compile_all(calls)


def run(writer) -> None:
    """Batch 1 from 2k to 128k tokens, then more sequences at 8k."""
    if not bench.has_gpu("decode_waves"):
        return
    compile_all()
    for shape in shapes():
        found = bench.measure(
            writer, "decode_waves", shape, variants(shape), extra(shape)
        )  # fmt: skip
        bench.say(f"{shape['batch']} x {shape['lengths']}: {bench.times_in_words(found)}")

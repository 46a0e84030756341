"""Split-KV decode beside what a user would pick: cuDNN, FlashAttention-2, FlexAttention.

Graph to graph: twenty calls captured, inputs rotated past the L2, the same for each. `split_kv`
merges as the launcher chooses (a dependent launch on Hopper), `split_kv_last` in the last arriver.
"""

from functools import partial

import torch
from torch.nn.attention.flex_attention import flex_attention

from benchmarks import _decode as bench
from benchmarks import _rotated, _warm

SHORT = ((1, 1024), (1, 2048), (1, 8192), (1, 32768), (8, 2048), (8, 8192), (64, 2048))
LONG = ((1, 131072), (64, 8192), (8, 131072), (64, 32768))
FLEX = ((1, 2048), (1, 8192), (1, 32768), (8, 8192), (64, 2048))  # compiles for seconds each
PEERS = ("cudnn", "flash2", "flex")


def flex():
    """FlexAttention compiled for one shape: its decoding kernel, where queries are few."""
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)

    def call(q, k, v):
        if not _warm.is_compiling():  # it has a compiler of its own
            return compiled(q, k, v, enable_gqa=True)

    return call


OWN = {
    "split_kv": bench.split,
    "split_kv_last": partial(bench.split, merge="last"),
    "split_kv_persistent": partial(bench.split, persistent=True),
}
VENDOR = {"cudnn": bench.cudnn, "flash2": bench.flash}


def measure(writer, batch: int, length: int) -> None:
    """Check, time and record one batch × context."""
    shape = bench.shape_of(batch, length)
    calls = OWN | VENDOR | ({"flex": flex()} if (batch, length) in FLEX else {})
    answers = dict.fromkeys(calls, bench.expected)
    work = bench.work_of(shape)
    make = partial(bench.inputs, shape)
    found = _rotated.side_by_side(calls, make, work.bytes, answers, PEERS, warmup_ms=8)
    splits = bench.chosen_splits(shape)
    extra = {"splits": splits, "programs": bench.programs(shape, splits)}
    for variant, time in found.items():
        ratio = found["cudnn"].median_us / time.median_us if "cudnn" in found else float("nan")
        speed = time.per_s(work.bytes) / 1e12
        words = f"{time.median_us:8.1f} us, {speed:.2f} TB/s, {ratio:.2f} of cuDNN"
        bench.say(f"{batch:3} x {length:6} {variant:20} {words}")
        peer = variant in PEERS
        writer.add(
            op="attention_decode", variant=variant, peer=peer, shape=shape, dtype=bench.DTYPE,
            timing=time, work=work, **({} if peer else extra),
        )  # fmt: skip


def run(writer) -> None:
    """Contexts 1k to 128k, batches 1 to 64."""
    if not bench.has_gpu("attention_decode"):
        return
    for batch, length in (*SHORT, *LONG):
        measure(writer, batch, length)

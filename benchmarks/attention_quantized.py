"""Decode over int8 and fp8 KV against our bf16, and against dequantizing first.

`dequantize_sdpa` writes bf16 keys and values, one PyTorch kernel each, and calls cuDNN: it reads
the codes, writes twice their bytes and reads those. Also the quantizing kernel itself, a step's
tokens and a prompt's.
"""

from functools import partial

import torch

from benchmarks import _kv, _rotated
from kernelbook import backend, checks
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_quantized as quantized
from kernelbook.kernels import kv_quantize as quantize
from kernelbook.work import Work

CASES = ((1, 2048), (1, 8192), (1, 32768), (8, 8192), (64, 2048), (1, 131072), (64, 8192))
QUANTIZED = ((64, 1), (1, 8192))  # batch, tokens
PAGE = 16
PEERS = ("dequantize_sdpa",)
EIGHT = 5e-2  # relative error of fp8, whose numbers are 1/8 apart; int8's is a third of it


def inputs(batch: int, length: int):
    """q, bf16 k and v, lengths, a table, and for each kind codes, scales of k, then those of v."""
    q, k, v = _kv.query_and_kv(batch, length)
    codes = {
        name: (*quantize.kv_quantize(k, to), *quantize.kv_quantize(v, to))
        for name, to in _kv.CODES.items()
    }
    table = _kv.table_of(batch, length // PAGE)
    return q, k, v, _kv.lengths_of(batch, length), table, codes


def bf16(q, k, v, lengths, table, codes):
    return decode.attention_decode(q, k, v, lengths)


def fused(kind: str, q, k, v, lengths, table, codes):
    k, k_scale, v, v_scale = codes[kind]
    return quantized.attention_quantized(q, k, v, k_scale, v_scale, lengths)


def paged(kind: str, q, k, v, lengths, table, codes):
    k, k_scale, v, v_scale = (_kv.pool(x, PAGE) for x in codes[kind])
    return quantized.attention_quantized(q, k, v, k_scale, v_scale, lengths, table)


def dequantize_sdpa(q, k, v, lengths, table, codes):
    k8, k_scale, v8, v_scale = codes["int8"]
    k, v = (
        torch.mul(x, scale[..., None], out=torch.empty_like(x, dtype=_kv.DTYPE))
        for x, scale in ((k8, k_scale), (v8, v_scale))
    )
    return _kv.cudnn(q, k, v)


CALLS = {
    "bf16": bf16,
    **{kind: partial(fused, kind) for kind in _kv.CODES},
    **{f"{kind}_paged": partial(paged, kind) for kind in _kv.CODES},
    "dequantize_sdpa": dequantize_sdpa,
}


def bf16_64(q, k, v, lengths, table, codes):
    return _kv.attended(q, k, v, lengths)


def codes64(kind: str, q, k, v, lengths, table, codes):
    return _kv.attended_codes(q, *codes[kind], lengths)


def pages64(kind: str, q, k, v, lengths, table, codes):
    return _kv.attended_codes(q, *(_kv.pool(x, PAGE) for x in codes[kind]), lengths, table)


EXPECTED = {
    "bf16": bf16_64,
    **{kind: partial(codes64, kind) for kind in _kv.CODES},
    **{f"{kind}_paged": partial(pages64, kind) for kind in _kv.CODES},
    "dequantize_sdpa": partial(codes64, "int8"),
}


def work_of(variant: str, batch: int, length: int) -> Work:
    """Useful work; dequantizing first writes bf16 KV and reads it again."""
    sizes = _kv.sizes_of(batch, length)
    whole = decode.work(**sizes, dtype=_kv.DTYPE)
    if variant == "bf16":
        return whole
    page = PAGE if variant.endswith("paged") else 0
    work = quantized.work(**sizes, dtype=_kv.DTYPE, page_size=page)
    if variant in PEERS:
        wide = 2 * batch * length * _kv.HEADS["kv_heads"] * _kv.HEADS["head_dim"] * 2
        work += Work(0, wide, wide)
    return work


def measure(writer, batch: int, length: int) -> None:
    least = work_of("int8", batch, length).bytes  # the smallest's inputs pass the L2, too
    make = partial(inputs, batch, length)
    found = _rotated.side_by_side(CALLS, make, least, EXPECTED, PEERS)
    for variant, time in found.items():
        gain = found["bf16"].median_us / time.median_us if "bf16" in found else 0
        print(f"{batch:3} x {length:6} {variant:17} {time.median_us:8.1f} us, {gain:.2f} x bf16")
        writer.add(
            op="attention_quantized", variant=variant, peer=variant in PEERS,
            shape=_kv.shape_of(batch, length), dtype=_kv.DTYPE, timing=time,
            work=work_of(variant, batch, length),
        )  # fmt: skip


def quantize_checked(kind: str, x):
    """kv_quantize to `kind`; AssertionError unless its codes stand for x, as far as 8 bits do."""
    checks.check(quantize.dequantize(*quantize.kv_quantize(x, _kv.CODES[kind])), x.double(), EIGHT)


def quantizing(writer, batch: int, tokens: int) -> None:
    """Keys of one step (a token a sequence), or of a prompt."""
    size = {"batch": batch, "heads": _kv.HEADS["kv_heads"], "tokens": tokens, "head_dim": 128}
    right = _rotated.passing(
        {kind: partial(quantize_checked, kind) for kind in _kv.CODES}, (_kv.randn(*size.values()),)
    )
    calls = {kind: partial(quantize.kv_quantize, dtype=_kv.CODES[kind]) for kind in right}
    works = {kind: quantize.work(**size, dtype=_kv.DTYPE, to=to) for kind, to in _kv.CODES.items()}
    moved = max(works["int8"].bytes, 2**20)
    found = _rotated.side_by_side(calls, lambda: (_kv.randn(*size.values()),), moved)
    for kind, time in found.items():
        rate = time.per_s(works[kind].bytes) / 1e12
        print(f"kv_quantize {kind} {batch} x {tokens}: {rate:.2f} TB/s")
        writer.add(
            op="kv_quantize", variant=kind, shape=size, dtype=_kv.DTYPE, timing=time,
            work=works[kind],
        )  # fmt: skip


def run(writer) -> None:
    """Contexts 2k to 128k, batches 1 to 64; then quantizing itself."""
    if not backend.GPU:
        print("attention_quantized: skipped, no GPU")
        return
    for case in CASES:
        measure(writer, *case)
    for case in QUANTIZED:
        quantizing(writer, *case)

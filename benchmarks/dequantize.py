"""Dequantization fused into attention, or first and on its own; and both against bf16 KV.

Separate dequantization is given its best: one kernel for keys and values that reads each code once
and writes bf16, then our decode or cuDNN's. It still reads the codes, writes twice their bytes and
reads those. Short contexts are here because there 8 bits have little to save.
"""

from functools import partial

import torch
import triton
import triton.language as tl

from benchmarks import _kv, _rotated
from kernelbook import backend
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_quantized as quantized
from kernelbook.kernels.kv_quantize import kv_quantize
from kernelbook.work import Work

CASES = ((1, 512), (1, 2048), (1, 8192), (16, 8192), (64, 8192))  # batch, context
ROWS = 64


@triton.jit(do_not_specialize=["rows"])
def dequantize_kernel(
    k, k_scale, v, v_scale, k_out, v_out, rows, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr
):
    """Program (r, 0): rows r ROWS .. of the keys; (r, 1): of the values. out = code · scale."""
    codes, scale, out = k, k_scale, k_out
    if tl.program_id(1) == 1:
        codes, scale, out = v, v_scale, v_out
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at = row[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    factor = tl.load(scale + row, mask=inside, other=0.0)
    x = tl.load(codes + at, mask=inside[:, None], other=0.0).to(tl.float32) * factor[:, None]
    tl.store(out + at, x.to(out.dtype.element_ty), mask=inside[:, None])


def dequantized(k, k_scale, v, v_scale) -> tuple[torch.Tensor, torch.Tensor]:
    """bf16 keys and values [B, Hkv, S, D] from contiguous codes and scales, in one launch."""
    head_dim = k.shape[-1]
    rows = k.numel() // head_dim
    outs = [torch.empty(k.shape, dtype=_kv.DTYPE, device=k.device) for _ in range(2)]
    dequantize_kernel[(triton.cdiv(rows, ROWS), 2)](
        k, k_scale, v, v_scale, *outs, rows, HEAD_DIM=head_dim, ROWS=ROWS, num_warps=8
    )
    return tuple(outs)


def inputs(batch: int, length: int):
    """q, bf16 k and v, lengths, and for each kind codes, scales of k, then those of v."""
    q, k, v = _kv.query_and_kv(batch, length)
    codes = {kind: (*kv_quantize(k, to), *kv_quantize(v, to)) for kind, to in _kv.CODES.items()}
    return q, k, v, _kv.lengths_of(batch, length), codes


def bf16(q, k, v, lengths, codes):
    return decode.attention_decode(q, k, v, lengths)


def sdpa_cudnn(q, k, v, lengths, codes):
    return _kv.cudnn(q, k, v)


def fused(kind: str, q, k, v, lengths, codes):
    k, k_scale, v, v_scale = codes[kind]
    return quantized.attention_quantized(q, k, v, k_scale, v_scale, lengths)


def separate(kind: str, q, k, v, lengths, codes):
    return decode.attention_decode(q, *dequantized(*codes[kind]), lengths)


def separate_sdpa(kind: str, q, k, v, lengths, codes):
    return _kv.cudnn(q, *dequantized(*codes[kind]))


def alone(kind: str, q, k, v, lengths, codes):
    """Only the kernel that dequantizes."""
    dequantized(*codes[kind])


WAYS = {
    "fused": fused,
    "separate": separate,
    "separate_sdpa": separate_sdpa,
    "dequantize": alone,
}
CALLS = {
    "bf16": bf16,
    "sdpa_cudnn": sdpa_cudnn,
    **{f"{kind}_{way}": partial(f, kind) for kind in _kv.CODES for way, f in WAYS.items()},
}


def bf16_64(q, k, v, lengths, codes):
    return _kv.attended(q, k, v, lengths)


def codes64(kind: str, q, k, v, lengths, codes):
    return _kv.attended_codes(q, *codes[kind], lengths)


EXPECTED = {"bf16": bf16_64, "sdpa_cudnn": bf16_64}
for _kind in _kv.CODES:
    EXPECTED |= dict.fromkeys(
        (f"{_kind}_fused", f"{_kind}_separate", f"{_kind}_separate_sdpa"), partial(codes64, _kind)
    )
PEERS = tuple(name for name in CALLS if "sdpa" in name)


def kept_as(variant: str) -> str:
    """bf16, int8 or fp8: how a variant's KV is stored."""
    return next((kind for kind in _kv.CODES if variant.startswith(kind)), "bf16")


def work_of(variant: str, batch: int, length: int) -> Work:
    """What a variant has to move: separately, codes read, bf16 written and read again."""
    sizes = _kv.sizes_of(batch, length)
    whole = decode.work(**sizes, dtype=_kv.DTYPE)
    if kept_as(variant) == "bf16":
        return whole
    if variant.endswith("fused"):
        return quantized.work(**sizes, dtype=_kv.DTYPE)
    rows = 2 * batch * length * _kv.HEADS["kv_heads"]
    wide = rows * _kv.HEADS["head_dim"]
    first = Work(wide, wide + 4 * rows, wide * _kv.DTYPE.itemsize)
    return first if variant.endswith("dequantize") else first + whole


def measure(writer, batch: int, length: int) -> None:
    least = work_of("int8_fused", batch, length).bytes
    make = partial(inputs, batch, length)
    found = _rotated.side_by_side(CALLS, make, least, EXPECTED, PEERS)
    for variant, time in found.items():
        work = work_of(variant, batch, length)
        extra = {"kv": kept_as(variant)}
        if "bf16" in found and not variant.endswith("dequantize"):
            extra["speedup"] = round(found["bf16"].median_us / time.median_us, 4)
        print(
            f"{batch:3} x {length:6} {variant:18} {time.median_us:8.1f} us "
            f"{time.per_s(work.bytes) / 1e12:5.2f} TB/s, {extra.get('speedup', 0):5.2f} x bf16"
        )
        writer.add(
            op="dequantize", variant=variant, peer=variant in PEERS,
            shape=_kv.shape_of(batch, length), dtype=_kv.DTYPE, timing=time, work=work, **extra,
        )  # fmt: skip


def run(writer) -> None:
    """From one short sequence, where 8 bits lose, to 64 long ones."""
    if not backend.GPU:
        print("dequantize: skipped, no GPU")
        return
    for case in CASES:
        measure(writer, *case)

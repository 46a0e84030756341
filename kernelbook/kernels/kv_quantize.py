"""Keys or values to 8 bits, one scale for each token and head.

    scale = max |x| / largest,   code = round(x / scale),   x ≈ code · scale

`largest` is 127 for int8 and 448 for fp8 (e4m3, whose codes are spaced relative to their size). A
token's scale depends on that token alone, so a cache is quantized as it grows and nothing that is
in it changes. The two bytes of a bf16 become one, and 4 bytes of scale a head and token.
"""

import torch
import triton
import triton.language as tl

from kernelbook import backend
from kernelbook.work import Work

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
ROWS = 16  # tokens of a program


def reference(x, dtype=torch.int8) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales; the arguments are `kv_quantize`'s."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))  # in bf16, 127 could become 128
    scale = x.abs().amax(-1) / LARGEST[dtype]
    scale = torch.where(scale == 0, 1.0, scale)  # any scale does for a token of zeros
    codes = x / scale[..., None]
    return (codes.round() if dtype == torch.int8 else codes.float()).to(dtype), scale.float()


def dequantize(codes, scale, dtype=torch.float32) -> torch.Tensor:
    """code · scale in fp32, or in fp64 for fp64, then rounded to `dtype`."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return (codes.to(wide) * scale[..., None].to(wide)).to(dtype)


def work(batch, heads, tokens, head_dim, dtype, to=torch.int8) -> Work:
    """x read once, codes and scales written once; |x|, maximum, division."""
    rows = batch * heads * tokens
    written = rows * (head_dim * to.itemsize + 4)
    return Work(3 * rows * head_dim, rows * head_dim * dtype.itemsize, written)


@triton.jit(do_not_specialize=["heads", "tokens"])
def kv_quantize_kernel(
    x, codes, scale, heads, tokens, largest,
    x_strides, codes_strides, scale_strides,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """Programs (r, h): tokens r ROWS .. of head h, numbered over batch and heads."""
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (token < tokens)[:, None] & (column < HEAD_DIM)[None, :]
    batch, head, row = batch.to(tl.int64), head.to(tl.int64), token.to(tl.int64)

    at = batch * x_strides[0] + head * x_strides[1] + row * x_strides[2]
    at = x + at[:, None] + column[None, :] * x_strides[3]
    values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    factor = tl.max(tl.abs(values), axis=1) / largest
    factor = tl.where(factor == 0.0, 1.0, factor)
    values = values / factor[:, None]
    if ROUND:  # adding and taking off 1.5 · 2**23 leaves the nearest integer, ties to even
        values = (values + 12582912.0) - 12582912.0
    to = batch * codes_strides[0] + head * codes_strides[1] + row * codes_strides[2]
    to = codes + to[:, None] + column[None, :] * codes_strides[3]
    tl.store(to, values.to(codes.dtype.element_ty), mask=inside)
    to = batch * scale_strides[0] + head * scale_strides[1] + row * scale_strides[2]
    tl.store(scale + to, factor, mask=token < tokens)


def kv_quantize(x, dtype=torch.int8, out=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of keys or values, a scale for each token and head.

    x      [B, H, S, D] in fp16, bf16 or fp32, any strides; D up to 256
    dtype  torch.int8 or torch.float8_e4m3fn
    out    (codes [B, H, S, D], scales fp32 [B, H, S]) to write to, any strides: a place in a cache
           such as (cache[:, :, t : t + 1], scales[:, :, t : t + 1]). New ones by default.

    Returns (codes, scales); a token of zeros gets the scale 1. Raises ValueError for other dtypes,
    shapes and devices, and for fp8 on a GPU before sm_89, whose Triton cannot convert to it.
    """
    if dtype not in LARGEST:
        raise ValueError(f"KV is quantized to torch.int8 or torch.float8_e4m3fn, got {dtype}")
    if x.ndim != 4 or not 1 <= x.shape[-1] <= 256 or x.dtype not in DTYPES:
        raise ValueError(
            f"x must be [B, H, S, D] in fp16, bf16 or fp32, D up to 256, got {x.dtype} "
            f"{tuple(x.shape)}"
        )
    refuse_fp8(x, dtype)
    if out is None:
        out = (
            torch.empty(x.shape, dtype=dtype, device=x.device),
            x.new_empty(x.shape[:3], dtype=torch.float32),
        )
    codes, scale = out
    if codes.dtype != dtype or codes.shape != x.shape:
        raise ValueError(f"out[0] must be {dtype} {tuple(x.shape)}, got {tuple(codes.shape)}")
    if scale.dtype != torch.float32 or scale.shape != x.shape[:3]:
        raise ValueError(f"out[1] must be fp32 {tuple(x.shape[:3])}, got {tuple(scale.shape)}")
    backend.same_device(x=x, codes=codes, scale=scale)
    batch, heads, tokens, head_dim = x.shape
    if x.numel():
        kv_quantize_kernel[(triton.cdiv(tokens, ROWS), batch * heads)](
            x, codes, scale, heads, tokens, LARGEST[dtype],
            x.stride(), codes.stride(), scale.stride(),
            HEAD_DIM=head_dim, WIDTH=max(16, triton.next_power_of_2(head_dim)), ROWS=ROWS,
            ROUND=dtype == torch.int8, num_warps=4,
        )  # fmt: skip
    return codes, scale


def refuse_fp8(x, dtype) -> None:
    """Raise ValueError where a GPU cannot convert fp8."""
    if dtype == torch.float8_e4m3fn and x.is_cuda and backend.capability(x.device) < (8, 9):
        raise ValueError(f"fp8 needs a GPU of sm_89 or newer, got {backend.capability(x.device)}")

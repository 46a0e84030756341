"""One-byte KV for tensor cores, two codes at a time: half the instructions of one at a time.

A matrix product wants its operands' bytes in an order that memory does not have; 16-bit elements
are put into it by one instruction (ldmatrix), single bytes one by one. So codes are loaded as
pairs (d, d + 1) in 16 bits, and in registers become two tiles, of even and of odd columns:

    q kᵀ = q_even k_evenᵀ + q_odd k_oddᵀ,   p v = [p v_even, p v_odd] interleaved

The conversions are inline assembly, exact: an int8 is put into the low bits of a float of
known exponent, which is then subtracted; fp8 (e4m3) has an instruction. Triton's interpreter
cannot run these; `_split_kv.stream` is the same mathematics without pairs.
Source: Kim et al., Who Says Elephants Can't Run (2022), for the int8 conversion.
"""

import triton
import triton.language as tl

from kernelbook.kernels._kv_tiles import page_of, softmax_step, tokens_at

# (code & 0x7f | 128.0's bits) - 128, or - 256 where the sign bit is set: 128 + 7 bits, exact.
INT8_TO_BF16 = """{{
.reg .b32 x, a, b, one;
shr.b32 x, $1, {shift};
lop3.b32 a, x, 0x007f007f, 0x43004300, 0xea;
lop3.b32 b, x, 0x00800080, 0xc300c300, 0xea;
mov.b32 one, 0x3f803f80;
fma.rn.bf16x2 $0, a, one, b;
}}"""
# The sign bit flipped is code + 128: in the low bits of 1024 it makes 1152 + code.
INT8_TO_FP16 = """{{
.reg .b32 x, a, bias;
shr.b32 x, $1, {shift};
lop3.b32 a, x, 0x00ff00ff, 0x64806480, 0x6a;
mov.b32 bias, 0x64806480;
sub.rn.f16x2 $0, a, bias;
}}"""
FP8_TO_FP16 = """{{
.reg .b32 a;
.reg .b16 two, rest;
prmt.b32 a, $1, 0, {select};
mov.b32 {{two, rest}}, a;
cvt.rn.f16x2.e4m3x2 $0, two;
}}"""
# Of two pairs in a register, bytes 0 and 2 are codes of even columns, 1 and 3 of odd ones.
BF16_EVEN = tl.constexpr(INT8_TO_BF16.format(shift=0))
BF16_ODD = tl.constexpr(INT8_TO_BF16.format(shift=8))
FP16_EVEN = tl.constexpr(INT8_TO_FP16.format(shift=0))
FP16_ODD = tl.constexpr(INT8_TO_FP16.format(shift=8))
FP8_EVEN = tl.constexpr(FP8_TO_FP16.format(select="0x4420"))
FP8_ODD = tl.constexpr(FP8_TO_FP16.format(select="0x4431"))


@triton.jit
def halves(pairs, dtype: tl.constexpr, FP8: tl.constexpr):
    """The even and the odd columns of a tile of pairs of codes, in `dtype` (fp16 or bf16)."""
    if FP8:
        even = tl.inline_asm_elementwise(FP8_EVEN, "=r,r", [pairs], tl.float16, True, 2)
        odd = tl.inline_asm_elementwise(FP8_ODD, "=r,r", [pairs], tl.float16, True, 2)
    elif dtype == tl.bfloat16:
        even = tl.inline_asm_elementwise(BF16_EVEN, "=r,r", [pairs], tl.bfloat16, True, 2)
        odd = tl.inline_asm_elementwise(BF16_ODD, "=r,r", [pairs], tl.bfloat16, True, 2)
    else:
        even = tl.inline_asm_elementwise(FP16_EVEN, "=r,r", [pairs], tl.float16, True, 2)
        odd = tl.inline_asm_elementwise(FP16_ODD, "=r,r", [pairs], tl.float16, True, 2)
    return even, odd


@triton.jit
def load_pairs(at, inside, WIDTH: tl.constexpr):
    """[BLOCK, WIDTH / 2] pairs of codes of the tokens whose first codes `at` points to."""
    column = tl.arange(0, WIDTH // 2)
    at = at.to(tl.pointer_type(tl.int16))[:, None] + column[None, :]
    return tl.load(at, mask=inside[:, None], other=0, eviction_policy="evict_first")


@triton.jit
def stream_pairs(
    q, last, begin, end, k, v, k_scale, v_scale, table, table_stride,
    k_strides, v_strides, ks_strides, vs_strides, scale,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """`_split_kv.stream` for one-byte codes whose rows are contiguous and whole, a power of two."""
    FP8: tl.constexpr = k.dtype.element_ty == tl.float8e4nv
    q_even, q_odd = tl.split(q.reshape([BLOCK_M, WIDTH // 2, 2]))
    even = tl.zeros([BLOCK_M, WIDTH // 2], dtype=tl.float32)
    odd = tl.zeros([BLOCK_M, WIDTH // 2], dtype=tl.float32)
    l = tl.zeros([BLOCK_M], dtype=tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    if PAGE > 0:
        ahead = page_of(table, begin, end, table_stride, BLOCK_N, PAGE)
    for start in range(begin, end, BLOCK_N):
        page = 0
        if PAGE > 0:
            page = ahead
            ahead = page_of(table, start + BLOCK_N, end, table_stride, BLOCK_N, PAGE)
        token = start + tl.arange(0, BLOCK_N)
        inside = token < end
        at = tokens_at(k, start, page, k_strides[0], k_strides[2], BLOCK_N, PAGE)
        k_even, k_odd = halves(load_pairs(at, inside, WIDTH), q.dtype, FP8)
        scores = tl.dot(q_odd, k_odd.T, tl.dot(q_even, k_even.T))
        at = tokens_at(k_scale, start, page, ks_strides[0], ks_strides[2], BLOCK_N, PAGE)
        scores *= tl.load(at, mask=inside, other=0.0)[None, :]
        visible = inside[None, :]
        if CAUSAL:
            visible = visible & (token[None, :] <= last[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        p, rescale, l, m = softmax_step(scores, l, m, scale, CAUSAL)
        even, odd = even * rescale[:, None], odd * rescale[:, None]

        at = tokens_at(v_scale, start, page, vs_strides[0], vs_strides[2], BLOCK_N, PAGE)
        factor = tl.load(at, mask=inside, other=0.0)
        at = tokens_at(v, start, page, v_strides[0], v_strides[2], BLOCK_N, PAGE)
        v_even, v_odd = halves(load_pairs(at, inside, WIDTH), q.dtype, FP8)
        if q.dtype == tl.float16:  # small p times a small scale would underflow
            largest = tl.maximum(tl.max(factor, axis=0), 1e-30)
            p = (p * (factor / largest)[None, :]).to(tl.float16)
            even += tl.dot(p, v_even) * largest
            odd += tl.dot(p, v_odd) * largest
        else:
            p = (p * factor[None, :]).to(q.dtype)
            even = tl.dot(p, v_even, even)
            odd = tl.dot(p, v_odd, odd)
    return tl.join(even, odd).reshape([BLOCK_M, WIDTH]), l, m

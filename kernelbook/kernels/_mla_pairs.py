"""MLA over an int8 latent, read as pairs of codes: `attention_mla.stream` as `_byte_pairs` has it.

Each tile is used twice, as keys and as values; both products take it as even and odd columns.
"""

import triton
import triton.language as tl

from kernelbook.kernels._byte_pairs import halves
from kernelbook.kernels._partials import online_softmax, page_of, token_at


@triton.jit
def stream_pairs(
    q_latent, q_rope, latent, rope, latent_scale, table, batch, begin, end, scale,
    stride_lb, stride_ln, stride_rb, stride_rn, stride_sb, stride_sn,
    LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    """Attend to the tokens from `begin` to `end`: output, sum of exponentials, maximum."""
    pair, rope_column = tl.arange(0, LATENT // 2), tl.arange(0, ROPE)
    pairs = latent.to(tl.pointer_type(tl.int16))
    q_even, q_odd = tl.split(q_latent.reshape([BLOCK_M, LATENT // 2, 2]))
    even = tl.zeros([BLOCK_M, LATENT // 2], dtype=tl.float32)
    odd = tl.zeros([BLOCK_M, LATENT // 2], dtype=tl.float32)
    l = tl.zeros([BLOCK_M], dtype=tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    ahead = page_of(table, begin, end, batch, BLOCK_N, PAGE)
    for start in range(begin, end, BLOCK_N):
        inside = start + tl.arange(0, BLOCK_N) < end
        page = ahead
        ahead = page_of(table, start + BLOCK_N, end, batch, BLOCK_N, PAGE)
        at = pairs + token_at(start, page, stride_lb // 2, stride_ln // 2, BLOCK_N, PAGE)
        tile = tl.load(at[:, None] + pair[None, :], mask=inside[:, None], other=0)
        at = rope + token_at(start, page, stride_rb, stride_rn, BLOCK_N, PAGE)
        rope_tile = tl.load(at[:, None] + rope_column[None, :], mask=inside[:, None], other=0.0)
        at = latent_scale + token_at(start, page, stride_sb, stride_sn, BLOCK_N, PAGE)
        token_scale = tl.load(at, mask=inside, other=0.0)

        k_even, k_odd = halves(tile, q_latent.dtype, False)
        scores = tl.dot(q_odd, k_odd.T, tl.dot(q_even, k_even.T)) * token_scale[None, :]
        scores = tl.dot(q_rope, rope_tile.T, scores)
        scores = tl.where(inside[None, :], scores, float("-inf"))
        before = m
        p, even, l, m = online_softmax(scores, even, l, m, scale)
        base = tl.where(m == float("-inf"), 0.0, m * scale)
        odd *= tl.math.exp2(before * scale - base)[:, None]
        p = (p * token_scale[None, :]).to(q_latent.dtype)
        even = tl.dot(p, k_even, even)
        odd = tl.dot(p, k_odd, odd)
    return tl.join(even, odd).reshape([BLOCK_M, LATENT]), l, m

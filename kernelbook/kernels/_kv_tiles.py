"""Pieces of decode kernels: which tokens are whose, where they lie, and one online-softmax step."""

import triton
import triton.language as tl


@triton.jit
def tiles_of(batch, lengths, capacity, splits, BLOCK_N: tl.constexpr):
    """(length, tiles a split, splits that have any) of a sequence."""
    length = capacity
    if lengths is not None:  # from memory: a captured graph sees the lengths of each replay
        length = tl.maximum(tl.minimum(tl.load(lengths + batch), capacity), 0)
    tiles = tl.cdiv(length, BLOCK_N)
    each = tl.maximum(tl.cdiv(tiles, splits), 1)
    return length, each, tl.cdiv(tiles, each)


@triton.jit
def page_of(table, start, end, stride, BLOCK: tl.constexpr, PAGE: tl.constexpr):
    """The page of each of BLOCK tokens, or where a page holds them all, that one."""
    token = start if PAGE % BLOCK == 0 else start + tl.arange(0, BLOCK)
    return tl.load(table + token // PAGE * stride, mask=token < end, other=0)


@triton.jit
def tokens_at(x, start, page, stride_page, stride, BLOCK: tl.constexpr, PAGE: tl.constexpr):
    """Pointers to BLOCK tokens; x points to the head's first token, of page 0 where paged."""
    row = tl.arange(0, BLOCK)
    if PAGE == 0:  # a head may be longer than 2**31 elements, a tile never is
        at = x + tl.cast(start, tl.int64) * stride + row * stride
    elif PAGE % BLOCK == 0:
        at = x + page.to(tl.int64) * stride_page + start % PAGE * stride + row * stride
    else:
        at = x + page.to(tl.int64) * stride_page + (start + row) % PAGE * stride
    return at


@triton.jit
def load_tile(at, inside, stride_d, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr):
    """[BLOCK, WIDTH] of K or V, 0 outside. Nobody reads it again: let it leave the L2 first."""
    column = tl.arange(0, WIDTH)
    mask = inside[:, None]
    if WIDTH != HEAD_DIM:
        mask = mask & (column < HEAD_DIM)[None, :]
    at = at[:, None] + column[None, :] * stride_d
    return tl.load(at, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def softmax_step(scores, l, m, scale, CAUSAL: tl.constexpr):
    """Take in a tile of scores: p, what earlier sums are rescaled by, and l, m renewed."""
    m_new = tl.maximum(m, tl.max(scores, axis=1))
    base = m_new * scale
    if CAUSAL:  # while a row has seen no key its maximum is -inf, and -inf - -inf is NaN
        base = tl.where(m_new == float("-inf"), 0.0, base)
    p = tl.math.exp2(scores * scale - base[:, None])
    rescale = tl.math.exp2(m * scale - base)
    return p, rescale, l * rescale + tl.sum(p, axis=1), m_new

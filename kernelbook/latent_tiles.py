"""Why a latent row of 576 numbers is two tiles: Triton's tiles are powers of two.

MLA's cache has rows of 512 + 64 numbers. As one tile a row is padded to 1024: of each tile in
shared memory 44% is zeros, and since the row is key and value at once, the accumulator is as wide.
As two tiles, 512 and 64, nothing is padded. The same short kernel both ways: predict registers and
shared memory, then read them through `compiled`. The tuned kernel is `kernels/attention_mla.py`.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernelbook import compiled
from kernelbook.kernels.attention_mla import SCALE

LATENT, ROPE = 512, 64


class Tile(NamedTuple):
    """Heads and tokens of a tile, and how the program is run."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


TILE = Tile(32, 32, 8, 2)  # from 64 rows on the product takes q from shared memory, too


@dataclass(frozen=True)
class Prediction:
    """What a row of `widths` costs a program.

    shared_bytes  tiles of tokens in flight: stages × block_n × columns × itemsize
    accumulator   fp32 registers a thread that hold the output, of 255
    padding       zeros among the columns, percent
    """

    widths: tuple[int, ...]
    shared_bytes: int
    accumulator: int
    padding: int


def widths_of(way: str) -> tuple[int, ...]:
    """Columns of the tiles: "one" padded tile, or "two"."""
    if way not in ("one", "two"):
        raise ValueError(f'a row is taken as "one" tile or "two", got {way!r}')
    return (triton.next_power_of_2(LATENT + ROPE),) if way == "one" else (LATENT, ROPE)


def predict(way: str, tile: Tile = TILE, itemsize: int = 2) -> Prediction:
    """Shared memory and registers, from the widths alone."""
    widths = widths_of(way)
    columns, threads = sum(widths), 32 * tile.num_warps
    return Prediction(
        widths,
        shared_bytes=tile.num_stages * tile.block_n * columns * itemsize,
        accumulator=tile.block_m * widths[0] // threads,
        padding=round(100 * (columns - LATENT - ROPE) / columns),
    )


@triton.jit
def softmax_step(scores, l, m, inside, scale):
    """p, the factor for what was summed so far, and l and m with these scores."""
    scores = tl.where(inside[None, :], scores * scale, float("-inf"))
    m_new = tl.maximum(m, tl.max(scores, axis=1))
    p = tl.math.exp2(scores - m_new[:, None])
    rescale = tl.math.exp2(m - m_new)
    return p, rescale, l * rescale + tl.sum(p, axis=1), m_new


@triton.jit
def one_tile_kernel(
    q, cache, out, heads, tokens, scale,
    LATENT: tl.constexpr, ROW: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Program (h, b): BLOCK_M heads of a sequence; a row of ROW numbers padded to WIDTH."""
    batch = tl.program_id(1)
    head = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, WIDTH)
    real = (column < ROW)[None, :]
    known = (head < heads)[:, None]
    at = (batch * heads + head)[:, None] * ROW + column[None, :]
    q_tile = tl.load(q + at, mask=known & real, other=0.0)
    acc = tl.zeros([BLOCK_M, WIDTH], dtype=tl.float32)
    l = tl.zeros([BLOCK_M], dtype=tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    for start in range(0, tokens, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        inside = token < tokens
        row = (batch * tokens + token)[:, None] * ROW + column[None, :]
        tile = tl.load(cache + row, mask=inside[:, None] & real, other=0.0)
        scores = tl.dot(q_tile, tile.T, input_precision="ieee")
        p, rescale, l, m = softmax_step(scores, l, m, inside, scale)
        acc = tl.dot(p.to(tile.dtype), tile, acc * rescale[:, None], input_precision="ieee")
    at = (batch * heads + head)[:, None] * LATENT + column[None, :]
    kept = known & (column < LATENT)[None, :]  # the sums of the rotary columns are thrown away
    tl.store(out + at, (acc / l[:, None]).to(out.dtype.element_ty), mask=kept)


@triton.jit
def two_tiles_kernel(
    q, cache, out, heads, tokens, scale,
    LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The same with a row as LATENT and ROPE numbers: two products add up in one score."""
    batch = tl.program_id(1)
    head = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column, rope_column = tl.arange(0, LATENT), tl.arange(0, ROPE)
    known = (head < heads)[:, None]
    at = q + (batch * heads + head)[:, None] * (LATENT + ROPE)
    q_latent = tl.load(at + column[None, :], mask=known, other=0.0)
    q_rope = tl.load(at + LATENT + rope_column[None, :], mask=known, other=0.0)
    acc = tl.zeros([BLOCK_M, LATENT], dtype=tl.float32)
    l = tl.zeros([BLOCK_M], dtype=tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    for start in range(0, tokens, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        inside = token < tokens
        row = cache + (batch * tokens + token)[:, None] * (LATENT + ROPE)
        tile = tl.load(row + column[None, :], mask=inside[:, None], other=0.0)
        rope = tl.load(row + LATENT + rope_column[None, :], mask=inside[:, None], other=0.0)
        scores = tl.dot(q_latent, tile.T, input_precision="ieee")
        scores = tl.dot(q_rope, rope.T, scores, input_precision="ieee")
        p, rescale, l, m = softmax_step(scores, l, m, inside, scale)
        acc = tl.dot(p.to(tile.dtype), tile, acc * rescale[:, None], input_precision="ieee")
    at = (batch * heads + head)[:, None] * LATENT + column[None, :]
    tl.store(out + at, (acc / l[:, None]).to(out.dtype.element_ty), mask=known)


def attend(q, cache, way: str = "two", tile: Tile = TILE) -> torch.Tensor:
    """softmax(scale · q cacheᵀ) cache[..., :512] for q [B, H, 576] and cache [B, S, 576].

    Both contiguous and of one dtype; every sequence has S tokens; no splits. ValueError otherwise.
    """
    widths, shapes = widths_of(way), f"{tuple(q.shape)}, {tuple(cache.shape)}"
    row = LATENT + ROPE
    if q.ndim != 3 or cache.ndim != 3 or q.shape[2] != row or cache.shape[2] != row:
        raise ValueError(f"q must be [B, H, {row}] and the cache [B, S, {row}], got {shapes}")
    if len(q) != len(cache) or 0 in (*q.shape, *cache.shape) or q.dtype != cache.dtype:
        raise ValueError(f"q and cache must agree in batch and dtype and not be empty: {shapes}")
    if not (q.is_contiguous() and cache.is_contiguous()):
        raise ValueError("q and cache must be contiguous")
    batch, heads, tokens = len(q), q.shape[1], cache.shape[1]
    out = q.new_empty(batch, heads, LATENT)
    kernel = one_tile_kernel if way == "one" else two_tiles_kernel
    kernel[(triton.cdiv(heads, tile.block_m), batch)](
        q, cache, out, heads, tokens, SCALE * math.log2(math.e),
        LATENT=LATENT, **({"ROW": row, "WIDTH": widths[0]} if way == "one" else {"ROPE": ROPE}),
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return out


def reports(
    tile: Tile = TILE, targets=(90,), heads: int = 128, tokens: int = 4096
) -> dict[str, list[compiled.Report]]:
    """way -> what the compiler says for each target, bf16: registers, spills, shared memory."""
    q = torch.empty(1, heads, LATENT + ROPE, dtype=torch.bfloat16)
    cache = torch.empty(1, tokens, LATENT + ROPE, dtype=torch.bfloat16)
    return {
        way: compiled.compile_launches(lambda way=way: attend(q, cache, way, tile), targets)
        for way in ("one", "two")
    }

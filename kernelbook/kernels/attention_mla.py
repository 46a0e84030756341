"""MLA decode: all heads attend to one latent row a token, which is key and value at once.

Multi-head latent attention caches, instead of keys and values of every head, one latent vector
(512) and one rotary key (64) a token. The up-projections are absorbed: W_UK into the query, W_UV
into what follows, so heads share the cache and its rows are read once for all of them:

    scores = scale · (q_latent · latent + q_rope · rope),   out = softmax(scores) latent

A row of 576 numbers is no power of two: as one tile it would be padded to 1024, 1.8 times the
registers and shared memory. It is two tiles, 512 and 64, and two products add up in one score.

Tried on an H200 while tiles were chosen, and left out. 16 heads, 64 × 8k tokens (156 µs): tiles of
32 tokens with 5 or 6 stages 264, on pages 190; 8 warps 176, which on pages beats 4 warps (180
against 210). 128 heads, 64 × 4k tokens (273 µs): tiles of 32 tokens 314, 4 warps 556, half of the
output's columns a program 293. There the tensor cores reach a third of their rate: Triton gives
both groups of four warps the whole product of scores, so they do it twice; warp roles as in
`attention_prefill_hopper` would not.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernelbook import backend
from kernelbook.kernels import _partials, _split_launch
from kernelbook.kernels._attention_inputs import DTYPES, check_scale
from kernelbook.kernels._mla_pairs import stream_pairs
from kernelbook.kernels._partials import online_softmax, page_of, part_of, store_result, token_at
from kernelbook.kernels._splits import splits_for
from kernelbook.work import Work

SCALE = (128 + 64) ** -0.5  # of the head dimension before absorption


def absorb_query(q_nope, q_rope, w_uk) -> torch.Tensor:
    """q_nope · (W_UK latent) = (W_UKᵀ q_nope) · latent: the query moved into the latent space.

    q_nope [B, H, 128], q_rope [B, H, 64], w_uk [H, 128, 512] -> q [B, H, 512 + 64].
    """
    return torch.cat([torch.einsum("bhd,hdl->bhl", q_nope, w_uk), q_rope], dim=-1)


def expand_output(out, w_uv) -> torch.Tensor:
    """Values of each head from the weighted latent: out [B, H, 512], w_uv [H, 512, 128]."""
    return torch.einsum("bhl,hlv->bhv", out, w_uv)


def unabsorbed(q_nope, q_rope, latent, rope, w_uk, w_uv, lengths, scale=SCALE) -> torch.Tensor:
    """What MLA is defined as: keys and values of every head written out, then plain attention."""
    k_nope = torch.einsum("bnl,hdl->bhnd", latent, w_uk)  # [B, H, S, 128]
    v = torch.einsum("bnl,hlv->bhnv", latent, w_uv)
    scores = torch.einsum("bhd,bhnd->bhn", q_nope, k_nope)
    scores = (scores + torch.einsum("bhd,bnd->bhn", q_rope, rope)) * scale
    hidden = torch.arange(latent.shape[1], device=q_rope.device) >= lengths[:, None, None]
    return torch.einsum("bhn,bhnv->bhv", scores.masked_fill(hidden, -math.inf).softmax(-1), v)


def quantize_latent(latent) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 and one fp32 scale a token: latent ≈ int8 · scale, the largest element at 127."""
    scale = latent.float().abs().amax(-1).clamp(min=1e-30) / 127
    return torch.round(latent.float() / scale[..., None]).to(torch.int8), scale


def reference(
    q, latent, rope, lengths, scale=SCALE, latent_scale=None, block_table=None, return_lse=False
):
    """The sums written out; the arguments are `attention_mla`'s."""
    latent = latent.to(q.dtype)
    if latent_scale is not None:
        latent = latent * latent_scale[..., None].to(q.dtype)
    if block_table is not None:  # each sequence's pages, one after another
        latent, rope = (x[block_table.long()].flatten(1, 2) for x in (latent, rope))
    scores = q @ torch.cat([latent, rope], dim=-1).transpose(1, 2) * scale  # [B, H, S]
    hidden = torch.arange(latent.shape[1], device=q.device) >= lengths[:, None, None]
    scores = scores.masked_fill(hidden, -math.inf)
    out = scores.softmax(-1).nan_to_num(0.0) @ latent.masked_fill(hidden.transpose(1, 2), 0)
    return (out, scores.logsumexp(-1)) if return_lse else out


def work(lengths, heads, dtype, latent=512, rope=64, quantized=False, page_size=None) -> Work:
    """2 FLOPs a head, key and element of the row, 2 more of the latent; each row read once.

    lengths  tokens of each sequence (a list); metadata read: lengths, scales, page numbers.
    """
    tokens, batch = sum(lengths), len(lengths)
    row = latent * (1 if quantized else dtype.itemsize) + rope * dtype.itemsize
    metadata = 4 * batch + (4 * tokens if quantized else 0)
    metadata += sum(4 * -(-length // page_size) for length in lengths) if page_size else 0
    q = batch * heads * (latent + rope) * dtype.itemsize
    out = batch * heads * latent * dtype.itemsize
    return Work(2 * heads * tokens * (2 * latent + rope), q + tokens * row + metadata, out)


class Config(NamedTuple):
    """Tile of heads, tile of tokens, and how the program is run."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def config(
    heads: int, dtype: torch.dtype, quantized: bool, capability, paged: bool = False
) -> Config:
    """Tiles on a GPU: a tile of tokens is 72 KiB at 64, so shared memory decides."""
    if dtype == torch.float32 or capability < (8, 0):  # no tensor cores: registers limit
        return Config(16, 16, 8, 1)
    hopper = capability[0] in (9, 10)  # 227 KiB of shared memory; 163 on (8, 0), else 99
    most = 64 if hopper or capability == (8, 0) else 32
    block_m = max(16, min(most, triton.next_power_of_2(heads)))
    if block_m == 16:  # 16 rows of output are few registers: more tiles in flight
        return Config(16, 64 if hopper else 32, 8 if quantized or paged else 4, 3)
    if block_m == 32 and hopper:  # two programs an SM, where int8 does not take their registers
        return Config(32, 64, 8, 2) if quantized else Config(32, 32, 4, 3)
    return Config(block_m, 64 if hopper and not quantized else 32, 8, 2)


def splits(batch: int, heads: int, capacity: int, tile: Config, device) -> int:
    """Parts for each sequence, by what it may grow to: the grid stays while lengths change."""
    programs = batch * triton.cdiv(heads, tile.block_m)
    places = backend.sms(device) * (2 if tile == Config(32, 32, 4, 3) else 1)
    return splits_for(programs, triton.cdiv(capacity, tile.block_n), places)


@triton.jit
def stream(
    q_latent, q_rope, latent, rope, latent_scale, table, batch, begin, end, scale,
    stride_lb, stride_ln, stride_rb, stride_rn, stride_sb, stride_sn,
    LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr, QUANTIZED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend to the tokens from `begin` to `end`: output, sum of exponentials, maximum."""
    column, rope_column = tl.arange(0, LATENT), tl.arange(0, ROPE)
    acc = tl.zeros([BLOCK_M, LATENT], dtype=tl.float32)
    l = tl.zeros([BLOCK_M], dtype=tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)

    ahead = page_of(table, begin, end, batch, BLOCK_N, PAGE)
    for start in range(begin, end, BLOCK_N):
        inside = start + tl.arange(0, BLOCK_N) < end
        page = ahead  # a page's number is read a tile ahead of the page
        ahead = page_of(table, start + BLOCK_N, end, batch, BLOCK_N, PAGE)
        at = latent + token_at(start, page, stride_lb, stride_ln, BLOCK_N, PAGE)
        tile = tl.load(at[:, None] + column[None, :], mask=inside[:, None], other=0)
        at = rope + token_at(start, page, stride_rb, stride_rn, BLOCK_N, PAGE)
        rope_tile = tl.load(at[:, None] + rope_column[None, :], mask=inside[:, None], other=0.0)

        tile = tile.to(q_latent.dtype)  # an int8 is exact in every dtype; its scale waits
        scores = tl.dot(q_latent, tile.T, input_precision=PRECISION)
        if QUANTIZED:
            at = latent_scale + token_at(start, page, stride_sb, stride_sn, BLOCK_N, PAGE)
            token_scale = tl.load(at, mask=inside, other=0.0)
            scores *= token_scale[None, :]
        scores = tl.dot(q_rope, rope_tile.T, scores, input_precision=PRECISION)
        scores = tl.where(inside[None, :], scores, float("-inf"))
        p, acc, l, m = online_softmax(scores, acc, l, m, scale)
        if QUANTIZED:
            p *= token_scale[None, :]
        acc = tl.dot(p.to(tile.dtype), tile, acc, input_precision=PRECISION)
    return acc, l, m


@triton.jit(do_not_specialize=["heads", "capacity", "parts"])
def attention_mla_kernel(
    q, latent, rope, latent_scale, lengths, block_table, out, lse, partial, partial_lse,
    heads, capacity, parts, scale,
    stride_qb, stride_qh, stride_lb, stride_ln, stride_rb, stride_rn, stride_sb, stride_sn,
    stride_tb,
    LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr, QUANTIZED: tl.constexpr, SPLIT: tl.constexpr, LSE: tl.constexpr,
    PAIRS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M heads of a sequence, one part of its tokens. `scale` has log2(e)."""
    if PDL:  # started while the kernel before it ends; the next one may start while this one ends
        gdc_wait()
        gdc_launch_dependents()
    part, batch = tl.program_id(1), tl.program_id(2)
    length = tl.maximum(tl.minimum(tl.load(lengths + batch), capacity), 0)
    begin, end = part_of(length, part, parts, BLOCK_N)

    head = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column, rope_column = tl.arange(0, LATENT), tl.arange(0, ROPE)
    row = q + batch.to(tl.int64) * stride_qb + head[:, None] * stride_qh
    wanted = (head < heads)[:, None] & (begin < end)
    q_latent = tl.load(row + column[None, :], mask=wanted, other=0.0)
    q_rope = tl.load(row + LATENT + rope_column[None, :], mask=wanted, other=0.0)
    table = block_table + batch.to(tl.int64) * stride_tb if PAGE > 0 else block_table
    if PAIRS:
        acc, l, m = stream_pairs(
            q_latent, q_rope, latent, rope, latent_scale, table, batch, begin, end, scale,
            stride_lb, stride_ln, stride_rb, stride_rn, stride_sb, stride_sn,
            LATENT, ROPE, BLOCK_M, BLOCK_N, PAGE,
        )  # fmt: skip
    else:
        acc, l, m = stream(
            q_latent, q_rope, latent, rope, latent_scale, table, batch, begin, end, scale,
            stride_lb, stride_ln, stride_rb, stride_rn, stride_sb, stride_sn,
            LATENT, ROPE, BLOCK_M, BLOCK_N, PAGE, QUANTIZED, PRECISION,
        )  # fmt: skip
    store_result(
        acc, l, m, scale, batch * heads + head, head < heads, part, parts, begin < end,
        out, lse, partial, partial_lse, LATENT, LATENT, SPLIT, LSE,
    )  # fmt: skip


def has_pairs(q, latent) -> bool:
    """Whether int8 latents can be read two at a time, which takes a GPU's instructions."""
    even = not (latent.data_ptr() | latent.stride(0) | latent.stride(1)) % 2
    tensor_cores = q.dtype != torch.float32 and backend.capability(q.device) >= (8, 0)
    return q.is_cuda and tensor_cores and even


def _check(q, latent, rope, lengths, scale, latent_scale, block_table):
    shapes = f"q {tuple(q.shape)}, latent {tuple(latent.shape)}, rope {tuple(rope.shape)}"
    if q.ndim != 3 or latent.ndim != 3 or rope.ndim != 3 or latent.shape[:2] != rope.shape[:2]:
        raise ValueError(
            "q must be [B, H, L + R], latent [B, capacity, L] and rope [B, capacity, R] "
            f"(with a block table [pages, page size, ...]), got {shapes}"
        )
    widths = latent.shape[2], rope.shape[2]
    if q.shape[2] != sum(widths) or any(w < 16 or w & (w - 1) for w in widths) or widths[0] > 512:
        raise ValueError(
            "q must be as wide as latent and rope together, each a power of two from 16, the "
            f"latent up to 512, got {shapes}"
        )
    if block_table is None and q.shape[0] != latent.shape[0]:
        raise ValueError(f"q and latent must agree in batch, got {shapes}")
    if q.dtype not in DTYPES or rope.dtype != q.dtype:
        raise ValueError(f"q and rope must both be fp16, bf16 or fp32, got {q.dtype}, {rope.dtype}")
    if latent.dtype != (q.dtype if latent_scale is None else torch.int8):
        raise ValueError(
            "latent must have q's dtype, or be int8 with latent_scale, got "
            f"{latent.dtype} {'without' if latent_scale is None else 'with'} latent_scale"
        )
    if latent_scale is not None and (
        latent_scale.shape != latent.shape[:2] or latent_scale.dtype != torch.float32
    ):
        got = f"{latent_scale.dtype} {tuple(latent_scale.shape)}"
        raise ValueError(f"latent_scale must be fp32 {tuple(latent.shape[:2])}, got {got}")
    if any(x.stride(-1) != 1 for x in (q, latent, rope)):
        raise ValueError("rows of q, latent and rope must be contiguous (last stride 1)")
    check_scale(scale)
    backend.same_device(
        q=q, latent=latent, rope=rope, lengths=lengths, latent_scale=latent_scale,
        block_table=block_table,
    )  # fmt: skip
    pages = 1 if block_table is None else block_table.shape[-1]
    _partials.check_lengths(lengths, q.shape[0], latent.shape[1] * pages)
    if block_table is not None:
        _partials.check_block_table(block_table, lengths, q.shape[0], *latent.shape[:2])


def attention_mla(
    q, latent, rope, lengths, scale=SCALE, latent_scale=None, block_table=None, return_lse=False
):
    """softmax(scale · q [latent, rope]ᵀ) latent for one query token a sequence, all heads together.

    q        [B, H, L + R], absorbed (`absorb_query`); fp16, bf16 or fp32, sums in fp32
    latent   [B, capacity, L], rope [B, capacity, R]: L and R powers of two (512 and 64), of q's
             dtype; two views of one cache row do: cache[..., :L] and cache[..., L:]
    lengths  int32 [B]: tokens of each sequence. On a GPU they are not checked, may change between
             replays of a CUDA graph, and count as at most what there is room for; 0 gives 0.
    scale    1 / sqrt(head dimension before absorption) by default, (128 + 64)^-0.5
    latent_scale  fp32 [B, capacity]: latent is int8 · scale, dequantized in the kernel
    block_table   int32 [B, pages]: latent, rope and latent_scale are pools [pages, page size, ...]
             of 8 to 256 tokens a page; token t lies in page block_table[b, t // page size]

    Returns out [B, H, L] like q, to be multiplied by W_UV (`expand_output`); with `return_lse` also
    the natural logarithm of each row's sum of exponentials, fp32 [B, H] (-inf without tokens).
    Raises ValueError for other shapes, dtypes or devices, and on the CPU for lengths and pages that
    do not exist. In fp16, int8 scales above 1e-4 keep
    their precision. Source: DeepSeek-V2 (2024), section 2.1; DeepSeek's FlashMLA (2025).
    """
    scale = float(scale)
    _check(q, latent, rope, lengths, scale, latent_scale, block_table)
    batch, heads, _ = q.shape
    width, paged = latent.shape[2], block_table is not None
    capacity = latent.shape[1] * (block_table.shape[1] if paged else 1)
    out = torch.empty(batch, heads, width, dtype=q.dtype, device=q.device)
    lse = torch.empty(batch, heads, dtype=torch.float32, device=q.device) if return_lse else None
    if out.numel() == 0:
        return (out, lse) if return_lse else out
    quantized = latent_scale is not None
    tile = config(heads, q.dtype, quantized, backend.capability(q.device), paged)
    blocks = triton.cdiv(heads, tile.block_m)
    parts = splits(batch, heads, capacity, tile, q.device)
    partial, partial_lse = None, None
    dependent = _split_launch.has_dependent_launch(q)
    if parts > 1:
        partial, partial_lse = _partials.scratch(batch * heads, parts, width, q.device)
    attention_mla_kernel[(blocks, parts, batch)](
        q,
        latent,
        rope,
        latent_scale,
        lengths,
        block_table,
        out,
        lse,
        partial,
        partial_lse,
        heads,
        capacity,
        parts,
        scale * math.log2(math.e),
        *q.stride()[:2],
        *latent.stride()[:2],
        *rope.stride()[:2],
        *(latent_scale.stride() if quantized else (0, 0)),
        block_table.stride(0) if paged else 0,
        LATENT=width,
        ROPE=rope.shape[2],
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        PAGE=latent.shape[1] if paged else 0,
        QUANTIZED=quantized,
        SPLIT=parts > 1,
        LSE=return_lse,
        PAIRS=quantized and has_pairs(q, latent),
        PRECISION="ieee",
        PDL=dependent,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **({"launch_pdl": True} if dependent else {}),
    )
    if parts > 1:
        _partials.merge(partial, partial_lse, out, lse, dependent)
    return (out, lse) if return_lse else out

"""Tiled attention for prefill: many queries, the scores never leave the chip.

A program holds a tile of queries, streams tiles of keys and values past it, and keeps for each
query the running maximum m, the sum l of exponentials and the unnormalized output acc. When a
tile raises the maximum, what was added up before is rescaled by exp(m_old - m_new). Only the
output is written: bytes grow with n where naive attention's grow with n².
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelbook import backend
from kernelbook.kernels._attention_inputs import check_qkv, check_scale
from kernelbook.work import Work


def reference(q, k, v, causal=False, scale=None) -> torch.Tensor:
    """softmax(scale · q kᵀ) v, written out; the arguments are `attention_prefill`'s."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * scale  # [B, Hq, Sq, Skv]
    if causal:
        rows, columns = scores.shape[-2:]
        visible = torch.ones(rows, columns, dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(~visible.tril(columns - rows), -math.inf)
    return torch.softmax(scores, dim=-1).nan_to_num(0.0) @ v  # a row that sees no key gives 0


def visible_pairs(queries: int, keys: int, causal: bool) -> int:
    """(query, key) pairs that are not masked: what attention has to compute."""
    if not causal:
        return queries * keys
    first = max(0, queries - keys)  # the first query that sees a key
    seen = keys - queries + first + 1  # by that query, and one more by each next
    rows = queries - first
    return rows * seen + rows * (rows - 1) // 2


def work(batch, query_heads, kv_heads, queries, keys, head_dim, dtype, causal=False) -> Work:
    """4 FLOPs a visible pair and head dimension; q, k, v read once, out written once."""
    flops = 4 * batch * query_heads * visible_pairs(queries, keys, causal) * head_dim
    out = batch * query_heads * queries * head_dim * dtype.itemsize
    return Work(flops, out + 2 * batch * kv_heads * keys * head_dim * dtype.itemsize, out)


class Config(NamedTuple):
    """Tile of queries, tile of keys, and how the program is run."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def config(queries: int, keys: int, head_dim: int, dtype: torch.dtype, capability) -> Config:
    """Tiles for a shape on a GPU: limited by shared memory and registers, no larger than needed."""
    width = padded(head_dim)
    hopper = capability[0] in (9, 10)  # 227 KiB of shared memory; 163 on (8, 0), else 99
    if dtype == torch.float32 or capability < (8, 0):  # no tensor cores: registers limit
        best = Config(64, 32, 8, 2) if width <= 64 else Config(32, 32, 8, 2)
        best = best if width <= 128 else Config(16, 32, 8, 1)
    elif width > 128:
        best = Config(128, 64, 8, 2) if hopper else Config(64, 32, 4, 2)
    elif width == 128 and not hopper:
        best = Config(128, 64, 8, 3 if capability == (8, 0) else 2)
    else:
        best = Config(128, 128 if hopper and width <= 64 else 64, 4, 3)
    block_m = max(16, min(best.block_m, triton.next_power_of_2(queries)))
    block_n = max(16, min(best.block_n, triton.next_power_of_2(keys)))
    return best._replace(block_m=block_m, block_n=block_n)


def padded(head_dim: int) -> int:
    """Width of a tile: tiles are powers of two, and a tensor core wants 16 columns."""
    return max(16, triton.next_power_of_2(head_dim))


@triton.jit
def _head(x, batch, head, stride_b, stride_h, TMA: tl.constexpr):
    """Where a head starts; a descriptor finds it by coordinates instead."""
    return x if TMA else x + batch.to(tl.int64) * stride_b + head.to(tl.int64) * stride_h


@triton.jit
def _load(
    x, batch, head, start, length, stride, stride_d,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    MASK: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Rows start .. start + BLOCK of a head as [BLOCK, WIDTH]; what lies outside reads as 0."""
    if TMA:  # x describes [B, H, S, D]: the copy engine computes addresses and knows the edges
        tile = x.load([batch, head, start, 0]).reshape([BLOCK, WIDTH])
    else:
        row, column = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
        # A head may be longer than 2**31 elements, a tile never is.
        at = x + tl.cast(start, tl.int64) * stride
        at = at + row[:, None] * stride + column[None, :] * stride_d
        if MASK:
            inside = (row < length - start)[:, None] & (column < HEAD_DIM)[None, :]
            tile = tl.load(at, mask=inside, other=0.0)
        elif WIDTH != HEAD_DIM:
            tile = tl.load(at, mask=(column < HEAD_DIM)[None, :], other=0.0)
        else:
            tile = tl.load(at)
    return tile


@triton.jit
def _stream(
    acc, l, m, q, k, v, batch, head, begin, end, row, keys, offset, scale,
    stride_kn, stride_kd, stride_vn, stride_vd,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take in the tiles of keys from `begin` to `end`; only MASK tiles have keys to leave out."""
    for start in range(begin, end, BLOCK_N):
        k_tile = _load(
            k, batch, head, start, keys, stride_kn, stride_kd, HEAD_DIM, WIDTH, BLOCK_N, MASK, TMA
        )
        scores = tl.dot(q, k_tile.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
        if MASK:
            column = start + tl.arange(0, BLOCK_N)
            visible = (column < keys)[None, :]
            if CAUSAL:
                visible = visible & (column[None, :] <= row[:, None] + offset)
            scores = tl.where(visible, scores, float("-inf"))
        m_new = tl.maximum(m, tl.max(scores, axis=1))
        # While a row has seen no key its maximum is -inf, and -inf - -inf would be NaN.
        base = tl.where(m_new == float("-inf"), 0.0, m_new * scale) if MASK else m_new * scale
        p = tl.math.exp2(scores * scale - base[:, None])
        rescale = tl.math.exp2(m * scale - base)
        l = l * rescale + tl.sum(p, axis=1)
        acc = acc * rescale[:, None]
        v_tile = _load(
            v, batch, head, start, keys, stride_vn, stride_vd, HEAD_DIM, WIDTH, BLOCK_N, MASK, TMA
        )
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision=PRECISION)
        m = m_new
    return acc, l, m


# Lengths and counts are not specialized: one binary serves them all.
@triton.jit(do_not_specialize=["query_heads", "kv_heads", "queries", "keys", "heads", "together"])
def attention_prefill_kernel(
    q, k, v, out, lse,
    query_heads, kv_heads, queries, keys, heads, together, scale,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_om, stride_od,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, TMA: tl.constexpr, LSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_M rows of one head's output. `scale` contains log2(e).

    Programs are numbered in bands of `together` heads, the last rows first: under a causal mask
    these see the most keys, and a long program that starts late leaves the other SMs idle.
    """
    tiles = tl.cdiv(queries, BLOCK_M)
    band = tl.program_id(0) // (together * tiles)
    within = tl.program_id(0) % (together * tiles)
    width = tl.minimum(heads - band * together, together)  # the last band may be narrower
    index = band * together + within % width
    start_m = (tiles - 1 - within // width) * BLOCK_M
    batch, head = index // query_heads, index % query_heads
    kv_head = head // (query_heads // kv_heads)

    row = start_m + tl.arange(0, BLOCK_M)
    offset = keys - queries  # query i sees the keys j <= i + offset
    q = _head(q, batch, head, stride_qb, stride_qh, TMA)
    k = _head(k, batch, kv_head, stride_kb, stride_kh, TMA)
    v = _head(v, batch, kv_head, stride_vb, stride_vh, TMA)
    q_tile = _load(
        q, batch, head, start_m, queries, stride_qm, stride_qd, HEAD_DIM, WIDTH, BLOCK_M, True, TMA
    )
    acc = tl.zeros([BLOCK_M, WIDTH], dtype=tl.float32)
    l = tl.zeros([BLOCK_M], dtype=tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)

    end, free = keys, keys  # keys that some row sees, keys that every row sees
    if CAUSAL:
        end = tl.maximum(tl.minimum(keys, start_m + BLOCK_M + offset), 0)
        free = tl.maximum(tl.minimum(keys, start_m + 1 + offset), 0)
    free = free // BLOCK_N * BLOCK_N
    acc, l, m = _stream(
        acc, l, m, q_tile, k, v, batch, kv_head, 0, free, row, keys, offset, scale,
        stride_kn, stride_kd, stride_vn, stride_vd,
        HEAD_DIM, WIDTH, BLOCK_N, False, CAUSAL, TMA, PRECISION,
    )  # fmt: skip
    acc, l, m = _stream(
        acc, l, m, q_tile, k, v, batch, kv_head, free, end, row, keys, offset, scale,
        stride_kn, stride_kd, stride_vn, stride_vd,
        HEAD_DIM, WIDTH, BLOCK_N, True, CAUSAL, TMA, PRECISION,
    )  # fmt: skip

    # A row that saw no key: acc = l = 0, and 0 / 1 is the 0 that we promise.
    result = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    column = tl.arange(0, WIDTH)
    to = _head(out, batch, head, stride_ob, stride_oh, False)
    to = to + row.to(tl.int64)[:, None] * stride_om + column[None, :] * stride_od
    inside = (row < queries)[:, None] & (column < HEAD_DIM)[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=inside)
    if LSE:  # as a natural logarithm
        value = (m * scale + tl.math.log2(tl.where(l == 0.0, 1.0, l))) * 0.6931471805599453
        value = tl.where(l == 0.0, float("-inf"), value)
        tl.store(lse + index.to(tl.int64) * queries + row, value, mask=row < queries)


def describable(x: torch.Tensor) -> bool:
    """Whether the copy engine (TMA) can read x: rows in one piece, the rest 16 bytes apart."""
    steps = [stride * x.element_size() % 16 for stride in x.stride()[:-1]]
    return x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and not any(steps) and min(x.stride()) > 0


def uses_tma(q, k, v) -> bool:
    """Whether the plain kernel loads by descriptors: through the copy engine, new in Hopper."""
    able = q.is_cuda and backend.capability() >= (9, 0) and k.shape[2] > 0
    return able and all(map(describable, (q, k, v)))


def has_fast_twin(q, k, v, causal: bool) -> bool:
    """Whether the kernel with warp roles (`attention_prefill_hopper`) takes this call."""
    queries, head_dim = q.shape[2:]
    return (
        q.is_cuda
        and backend.capability() == (9, 0)
        and q.dtype != torch.float32
        and 32 < head_dim <= 128
        and head_dim % 8 == 0
        and queries > 64  # one consumer's rows
        and k.shape[2] >= (queries if causal else 1)  # it has no rows without keys
        and all(map(describable, (q, k, v)))
    )


def attention_prefill(q, k, v, causal=False, scale=None, return_lse=False):
    """softmax(scale · q kᵀ) v by tiles, the scores never written to memory.

    q [B, Hq, Sq, D], k and v [B, Hkv, Skv, D] with Hq a multiple of Hkv: query head h reads KV head
    h // (Hq / Hkv). D from 8 to 256, any lengths, any strides; fp16, bf16 or fp32, sums in fp32 (no
    tf32). `scale` defaults to 1 / sqrt(D). `causal` is aligned to the end: query i sees the keys
    j <= Skv - Sq + i. A query that sees no key gets 0.

    Returns out, contiguous, shaped and typed like q; with `return_lse` also the natural logarithm
    of each row's sum of exponentials, fp32 [B, Hq, Sq] (-inf where no key is seen), by which
    partial results merge. Raises ValueError for other shapes, dtypes or devices.

    On Hopper, fp16 and bf16 with a head dimension of 40 to 128 run in a kernel with warp roles
    (`attention_prefill_hopper`). Elsewhere from sm_90 on, tiles come through the copy engine (TMA)
    where the strides allow it; otherwise, and in the interpreter, the same plain kernel loads
    through pointers. Before sm_80 Triton uses no tensor cores: right, and slow.
    Source: Dao et al., FlashAttention (2022) and FlashAttention-2 (2023).
    """
    check_qkv(q, k, v)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    check_scale(scale)
    batch, query_heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if return_lse else None
    if out.numel() == 0:
        return (out, lse) if return_lse else out
    scale *= math.log2(math.e)  # exponentials are taken as powers of two
    if has_fast_twin(q, k, v, causal):
        from kernelbook.kernels import attention_prefill_hopper  # Gluon: only where it can run

        attention_prefill_hopper.launch(q, k, v, out, lse, causal, scale)
        return (out, lse) if return_lse else out
    tile = config(queries, keys, head_dim, q.dtype, backend.capability(q.device))
    width = padded(head_dim)
    tma = uses_tma(q, k, v)
    sources = (q, k, v)
    if tma:
        blocks = (tile.block_m, tile.block_n, tile.block_n)
        sources = [
            TensorDescriptor(x, x.shape, x.stride(), [1, 1, block, width])
            for x, block in zip(sources, blocks, strict=True)
        ]
    heads = batch * query_heads
    attention_prefill_kernel[(triton.cdiv(queries, tile.block_m) * heads,)](
        *sources,
        out,
        lse,
        query_heads,
        kv_heads,
        queries,
        keys,
        heads,
        heads_together(heads, keys, head_dim, q.dtype) if causal else 1,
        scale,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        *out.stride(),
        HEAD_DIM=head_dim,
        WIDTH=width,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        CAUSAL=causal,
        TMA=tma,
        LSE=return_lse,
        PRECISION="ieee",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return (out, lse) if return_lse else out


def heads_together(heads: int, keys: int, head_dim: int, dtype: torch.dtype) -> int:
    """Heads that run side by side under a causal mask: as many as keep their keys in 16 MiB."""
    one = 2 * keys * head_dim * dtype.itemsize
    return max(1, min(heads, 2**24 // one)) if one else 1

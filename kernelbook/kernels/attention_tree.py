"""Tree verification: up to 64 drafted tokens attend to the context and to their ancestors.

Speculative decoding drafts a tree of tokens and lets the model verify all of them in one step.
Each sees the whole committed context, which is read once for all, and of the tree only the path
that leads to it: 64 bits a token say which. The context needs no mask; only the last tiles, where
the tree's own keys lie behind the context's, look at the bits.

At batch 1 it costs more than a decode step of one token (8k tokens of context, a tree of 16: 20.5
against 14.8 µs on an H200), as each split leaves 16 times as many partial rows to write and merge.
Tried there while tiles were chosen (20.8), and left out: tiles of 128 keys 22.9, twice the splits
23.3.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernelbook import backend
from kernelbook.kernels import _partials, _split_launch
from kernelbook.kernels._attention_inputs import check_dtypes, check_scale, check_shapes
from kernelbook.kernels._partials import online_softmax, page_of, part_of, store_result, token_at
from kernelbook.kernels._splits import splits_for
from kernelbook.kernels.attention_prefill import padded
from kernelbook.work import Work

MOST_TOKENS = 64  # bits of an int64


def pack_ancestors(parents: list[int]) -> torch.Tensor:
    """Bits of each token's path, itself included, from each token's parent (-1: none): int64 [T].

    pack_ancestors([-1, 0, 0]) is [0b001, 0b011, 0b101]: two guesses for what follows token 0.
    """
    if len(parents) > MOST_TOKENS or any(not -1 <= p < i for i, p in enumerate(parents)):
        raise ValueError(f"up to 64 parents, each before its child or -1, got {parents}")
    bits = []
    for i, parent in enumerate(parents):
        bits.append(1 << i | (bits[parent] if parent >= 0 else 0))
    signed = [b - 2**64 if b >= 2**63 else b for b in bits]
    return torch.tensor(signed, dtype=torch.int64)


def dense_mask(ancestors, lengths, capacity: int) -> torch.Tensor:
    """Which cache entries each tree token sees, bool [B, T, capacity]."""
    tokens = ancestors.shape[1]
    place = torch.arange(capacity, device=ancestors.device) - lengths[:, None]  # in the tree
    bit = ancestors[:, :, None] >> place.clamp(0, 63)[:, None] & 1 == 1
    in_tree = (place >= 0) & (place < tokens)
    return (place < 0)[:, None] | in_tree[:, None] & bit


def reference(
    q, k, v, ancestors, lengths, scale=None, block_table=None, return_lse=False
):  # fmt: skip
    """Attention with the mask written out; the arguments are `attention_tree`'s."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if block_table is not None:  # [B, n, Hkv, page, D] -> [B, Hkv, n · page, D]
        k, v = (x[block_table.long()].transpose(1, 2).flatten(2, 3) for x in (k, v))
    visible = dense_mask(ancestors, lengths, k.shape[2])[:, None]  # [B, 1, T, capacity]
    unused = ~visible.any(2)[..., None]
    k, v = (x.masked_fill(unused, 0).repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~visible, -math.inf)
    out = torch.softmax(scores, dim=-1) @ v
    return (out, scores.logsumexp(-1)) if return_lse else out


def work(
    lengths, query_heads, kv_heads, tokens, head_dim, dtype, tree_pairs=None, page_size=None
) -> Work:
    """4 FLOPs a visible pair and head dimension; keys and values of context and tree read once.

    lengths     committed tokens of each sequence (a list)
    tree_pairs  bits set in one sequence's ancestors; default: a chain's, T (T + 1) / 2
    """
    batch = len(lengths)
    tree_pairs = tokens * (tokens + 1) // 2 if tree_pairs is None else tree_pairs
    pairs = tokens * sum(lengths) + batch * tree_pairs
    keys = sum(lengths) + batch * tokens
    out = batch * query_heads * tokens * head_dim * dtype.itemsize
    metadata = 4 * batch + 8 * batch * tokens  # lengths and bits
    metadata += sum(4 * -(-(n + tokens) // page_size) for n in lengths) if page_size else 0
    read = out + 2 * kv_heads * keys * head_dim * dtype.itemsize + metadata
    return Work(4 * query_heads * pairs * head_dim, read, out)


class Config(NamedTuple):
    """Tile of query rows, tile of keys, and how the program is run."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def config(rows: int, head_dim: int, dtype: torch.dtype, capability) -> Config:
    """Tiles for `rows` = group × tree rows that share keys, on a GPU."""
    width = padded(head_dim)
    least = max(16, triton.next_power_of_2(rows))
    if dtype == torch.float32 or capability < (8, 0):  # no tensor cores: registers limit
        return Config(16, 32 if width <= 128 else 16, 8, 2)
    if capability[0] in (9, 10) or capability == (8, 0):  # 163 KiB of shared memory, or more
        block_n = 128 if width <= 64 else 64 if width <= 128 else 32
        block_m = min(least, 128 if width <= 128 else 64)
        wide = block_m > 64 or width > 128
        return Config(block_m, block_n, 8 if wide else 4, 3 if wide else 4)
    return Config(min(least, 64), 64 if width <= 64 else 32 if width <= 128 else 16, 4, 2)


def splits(groups: int, rows: int, capacity: int, tile: Config, device) -> int:
    """Parts for each sequence, by what it may grow to: the grid stays while lengths change."""
    sms = backend.sms(device)
    programs = groups * triton.cdiv(rows, tile.block_m)
    return splits_for(programs, triton.cdiv(capacity, tile.block_n), sms)


@triton.jit
def _load(at, inside, stride_d, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, MASK: tl.constexpr):
    """Rows at `at` as [rows, WIDTH]; what is not `inside`, or past the head, reads as 0."""
    column = tl.arange(0, WIDTH)
    at = at[:, None] + column[None, :] * stride_d
    if MASK:
        tile = tl.load(at, mask=inside[:, None] & (column < HEAD_DIM)[None, :], other=0.0)
    elif WIDTH != HEAD_DIM:
        tile = tl.load(at, mask=(column < HEAD_DIM)[None, :], other=0.0)
    else:
        tile = tl.load(at)
    return tile


@triton.jit
def _stream(
    acc, l, m, q_tile, k, v, table, batch, begin, end, length, bits, scale,
    stride_kb, stride_kn, stride_kd, stride_vb, stride_vn, stride_vd,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr,
    TREE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take in tiles of keys from `begin` to `end`; only TREE tiles have keys to leave out."""
    ahead = page_of(table, begin, end, batch, BLOCK_N, PAGE)
    for start in range(begin, end, BLOCK_N):
        page = ahead  # a page's number is read a tile ahead of the page
        ahead = page_of(table, start + BLOCK_N, end, batch, BLOCK_N, PAGE)
        key = start + tl.arange(0, BLOCK_N)
        at = k + token_at(start, page, stride_kb, stride_kn, BLOCK_N, PAGE)
        k_tile = _load(at, key < end, stride_kd, HEAD_DIM, WIDTH, TREE)
        scores = tl.dot(q_tile, k_tile.T, input_precision=PRECISION)
        if TREE:
            place = key - length  # in the tree; the context's keys lie before it
            bit = (bits[:, None] >> tl.maximum(place, 0).to(tl.int64)[None, :]) & 1
            visible = (place < 0)[None, :] | (bit == 1)
            scores = tl.where(visible & (key < end)[None, :], scores, float("-inf"))
        p, acc, l, m = online_softmax(scores, acc, l, m, scale)
        at = v + token_at(start, page, stride_vb, stride_vn, BLOCK_N, PAGE)
        v_tile = _load(at, key < end, stride_vd, HEAD_DIM, WIDTH, TREE)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision=PRECISION)
    return acc, l, m


# Lengths and counts are not specialized: one binary serves them all.
@triton.jit(do_not_specialize=["kv_heads", "group", "tokens", "capacity", "parts"])
def attention_tree_kernel(
    q, k, v, ancestors, lengths, block_table, out, lse, partial, partial_lse,
    kv_heads, group, tokens, capacity, parts, scale,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ab, stride_am, stride_tb,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr, SPLIT: tl.constexpr, LSE: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M of the group × tree rows of a KV head, one part of the keys."""
    if PDL:  # started while the kernel before it ends; the next one may start while this one ends
        gdc_wait()
        gdc_launch_dependents()
    part = tl.program_id(1)
    batch, kv_head = tl.program_id(2) // kv_heads, tl.program_id(2) % kv_heads
    length = tl.maximum(tl.minimum(tl.load(lengths + batch), capacity - tokens), 0)
    begin, end = part_of(length + tokens, part, parts, BLOCK_N)

    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = row < group * tokens
    head, token = kv_head * group + row // tokens, row % tokens
    at = q + batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh + token * stride_qm
    q_tile = _load(at, inside & (begin < end), stride_qd, HEAD_DIM, WIDTH, True)
    at = ancestors + batch.to(tl.int64) * stride_ab + token * stride_am
    bits = tl.load(at, mask=inside & (end > length), other=0)
    k += kv_head.to(tl.int64) * stride_kh
    v += kv_head.to(tl.int64) * stride_vh
    table = block_table + batch.to(tl.int64) * stride_tb if PAGE > 0 else block_table

    acc = tl.zeros([BLOCK_M, WIDTH], dtype=tl.float32)
    l = tl.zeros([BLOCK_M], dtype=tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    free = tl.minimum(end, tl.maximum(begin, length // BLOCK_N * BLOCK_N))  # context alone
    acc, l, m = _stream(
        acc, l, m, q_tile, k, v, table, batch, begin, free, length, bits, scale,
        stride_kb, stride_kn, stride_kd, stride_vb, stride_vn, stride_vd,
        HEAD_DIM, WIDTH, BLOCK_N, PAGE, False, PRECISION,
    )  # fmt: skip
    acc, l, m = _stream(
        acc, l, m, q_tile, k, v, table, batch, free, end, length, bits, scale,
        stride_kb, stride_kn, stride_kd, stride_vb, stride_vn, stride_vd,
        HEAD_DIM, WIDTH, BLOCK_N, PAGE, True, PRECISION,
    )  # fmt: skip
    store_result(
        acc, l, m, scale, tl.program_id(2).to(tl.int64) * group * tokens + row, inside,
        part, parts, begin < end, out, lse, partial, partial_lse, HEAD_DIM, WIDTH, SPLIT, LSE,
    )  # fmt: skip


def _check(q, k, v, ancestors, lengths, scale, block_table):
    check_shapes(q, k, v, pool=block_table is not None)
    batch, _, tokens, _ = q.shape
    if not 1 <= tokens <= MOST_TOKENS:
        raise ValueError(f"a tree has 1 to 64 tokens, got q {tuple(q.shape)}")
    check_dtypes(q, k, v)
    check_scale(scale)
    backend.same_device(
        q=q, k=k, v=v, ancestors=ancestors, lengths=lengths, block_table=block_table
    )  # fmt: skip
    pages = 1 if block_table is None else block_table.shape[-1]
    if tokens > k.shape[2] * pages:
        raise ValueError(f"{tokens} tree tokens do not fit in a cache of {k.shape[2] * pages}")
    _partials.check_lengths(lengths, batch, k.shape[2] * pages - tokens, least=0)
    if block_table is not None:
        _partials.check_block_table(
            block_table, lengths, batch, k.shape[0], k.shape[2], more=tokens
        )
    _check_ancestors(ancestors, batch, tokens)


def _check_ancestors(ancestors, batch: int, tokens: int):
    if ancestors.shape != (batch, tokens) or ancestors.dtype != torch.int64:
        got = f"{ancestors.dtype} {tuple(ancestors.shape)}"
        raise ValueError(f"ancestors must be int64 [{batch}, {tokens}], got {got}")
    known = _partials.host_values(ancestors)
    for index in range(tokens if known is not None else 0):
        bits = [int(b) & (2**64 - 1) for b in known[:, index]]
        if any(not b >> index & 1 for b in bits):
            raise ValueError(f"tree token {index} does not see itself: its bit {index} is 0")
        if any(b >> index + 1 for b in bits):
            raise ValueError(f"tree token {index} sees one after it: ancestors come first")


def attention_tree(
    q, k, v, ancestors, lengths, scale=None, block_table=None, return_lse=False
):  # fmt: skip
    """Attention of a tree of drafted tokens to the context and to each token's own ancestors.

    q          [B, Hq, T, D]: T from 1 to 64 tree tokens; fp16, bf16 or fp32, sums in fp32
    k, v       [B, Hkv, capacity, D], any strides: the context, then the tree's own T entries
    ancestors  int64 [B, T]: bit j of entry i is set where token i sees token j, its ancestor or
               itself (`pack_ancestors`); expand() it where sequences share a tree
    lengths    int32 [B]: committed tokens; token j's key is entry lengths[b] + j
    block_table  int32 [B, pages]: k and v are pools [pages, Hkv, page size, D] of 8 to 256 tokens a
               page; entry t lies in page block_table[b, t // page size]

    Returns out, contiguous, shaped and typed like q; with `return_lse` also the natural logarithm
    of each row's sum of exponentials, fp32 [B, Hq, T]. Raises ValueError for other shapes, dtypes
    or devices; on the CPU also for lengths and pages that do not exist and for ancestors that leave
    out a token itself or name a later one. On a GPU these may change between replays of a CUDA
    graph and are not checked; nothing beyond capacity is read.
    Source: Miao et al., SpecInfer (2023); Cai et al., Medusa (2024).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    _check(q, k, v, ancestors, lengths, scale, block_table)
    batch, query_heads, tokens, head_dim = q.shape
    kv_heads, paged = k.shape[1], block_table is not None
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if return_lse else None
    if out.numel() == 0:
        return (out, lse) if return_lse else out
    group = query_heads // kv_heads
    capacity = k.shape[2] * (block_table.shape[1] if paged else 1)
    tile = config(group * tokens, head_dim, q.dtype, backend.capability(q.device))
    parts = splits(batch * kv_heads, group * tokens, capacity, tile, q.device)
    partial, partial_lse = None, None
    dependent = _split_launch.has_dependent_launch(q)
    if parts > 1:
        rows = batch * query_heads * tokens
        partial, partial_lse = _partials.scratch(rows, parts, head_dim, q.device)
    grid = (triton.cdiv(group * tokens, tile.block_m), parts, batch * kv_heads)
    attention_tree_kernel[grid](
        q, k, v, ancestors, lengths, block_table, out, lse, partial, partial_lse,
        kv_heads, group, tokens, capacity, parts, scale * math.log2(math.e),
        *q.stride(), *k.stride(), *v.stride(), *ancestors.stride(),
        block_table.stride(0) if paged else 0,
        HEAD_DIM=head_dim, WIDTH=padded(head_dim), BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
        PAGE=k.shape[2] if paged else 0, SPLIT=parts > 1, LSE=return_lse, PRECISION="ieee",
        PDL=dependent, num_warps=tile.num_warps, num_stages=tile.num_stages,
        **({"launch_pdl": True} if dependent else {}),
    )  # fmt: skip
    if parts > 1:
        _partials.merge(partial, partial_lse, out, lse, dependent)
    return (out, lse) if return_lse else out

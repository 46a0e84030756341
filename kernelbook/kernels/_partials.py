"""Partial attention results and their merge by log-sum-exp.

Attention over a part of the keys gives an output o and the logarithm e of its sum of exponentials.
Parts merge exactly: out = Σ exp(e_i - e) o_i with e = log Σ exp(e_i). A part without keys has
e = -inf and weighs nothing, whatever its output holds. Here e is a power of two's: log2.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernelbook.kernels._split_launch import host_values

MERGED_AT_ONCE = 8192  # fp32 elements of partial results that a merging program holds


def scratch(rows: int, parts: int, width: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for `parts` partial outputs a row, fp32 [rows, parts, width], and their logarithms."""
    partial = torch.empty(rows, parts, width, dtype=torch.float32, device=device)
    return partial, torch.empty(rows, parts, dtype=torch.float32, device=device)


def partial_bytes(rows: int, parts: int, width: int) -> int:
    """Bytes written and then read for parts that all have keys; one part needs no merge."""
    return 4 * rows * parts * (width + 1) if parts > 1 else 0


@triton.jit
def part_of(length, part, parts, BLOCK: tl.constexpr):
    """Keys [begin, end) of a part: whole tiles, evenly; the last parts may be empty."""
    size = tl.cdiv(tl.cdiv(length, BLOCK), parts) * BLOCK
    begin = tl.minimum(part * size, length)
    return begin, tl.minimum(begin + size, length)


@triton.jit
def page_of(table, start, end, batch, BLOCK: tl.constexpr, PAGE: tl.constexpr):
    """Which block of the cache holds each of BLOCK tokens, or where one holds them all, that one.

    A contiguous cache (PAGE = 0) has a block a sequence; a pool's block is a page.
    """
    if PAGE == 0:
        page = batch
    else:
        token = start if PAGE % BLOCK == 0 else start + tl.arange(0, BLOCK)
        page = tl.load(table + token // PAGE, mask=token < end, other=0)
    return page


@triton.jit
def token_at(start, page, stride_block, stride_token, BLOCK: tl.constexpr, PAGE: tl.constexpr):
    """Offsets of BLOCK tokens from `start` in the cache, in 64 bits."""
    row = tl.arange(0, BLOCK)
    if PAGE == 0:
        at = tl.cast(start, tl.int64) * stride_token + row * stride_token
    elif PAGE % BLOCK == 0:
        at = start % PAGE * stride_token + row * stride_token
    else:
        at = (start + row) % PAGE * stride_token
    return at + page.to(tl.int64) * stride_block


@triton.jit
def online_softmax(scores, acc, l, m, scale):
    """Take in a tile of scores (-inf: not seen): p, and acc, l, m at the new maximum."""
    m_new = tl.maximum(m, tl.max(scores, axis=1))
    # While a row has seen no key its maximum is -inf, and -inf - -inf would be NaN.
    base = tl.where(m_new == float("-inf"), 0.0, m_new * scale)
    p = tl.math.exp2(scores * scale - base[:, None])
    rescale = tl.math.exp2(m * scale - base)
    return p, acc * rescale[:, None], l * rescale + tl.sum(p, axis=1), m_new


@triton.jit
def finish(acc, l, m, scale):
    """Output and log2 of the sum of exponentials; a row that saw no key gives 0 and -inf."""
    some = tl.where(l == 0.0, 1.0, l)
    return acc / some[:, None], tl.where(l == 0.0, float("-inf"), m * scale + tl.math.log2(some))


@triton.jit
def store_result(
    acc, l, m, scale, row, inside, part, parts, seen, out, lse, partial, partial_lse,
    WIDTH: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    """Write rows' result: as the answer, or with SPLIT as part `part` (if it has `seen` a key)."""
    result, log2_sum = finish(acc, l, m, scale)
    column = tl.arange(0, TILE)
    row = row.to(tl.int64)
    both = inside[:, None] & (column < WIDTH)[None, :]
    if SPLIT:
        at = row * parts + part
        to = partial + at[:, None] * WIDTH + column[None, :]
        tl.store(to, result, mask=both & seen)
        tl.store(partial_lse + at, log2_sum, mask=inside)
    else:
        to = out + row[:, None] * WIDTH + column[None, :]
        tl.store(to, result.to(out.dtype.element_ty), mask=both)
        if LSE:  # as a natural logarithm
            tl.store(lse + row, log2_sum * 0.6931471805599453, mask=inside)


@triton.jit(do_not_specialize=["parts"])
def merge_kernel(
    partial, partial_lse, out, lse, parts,
    WIDTH: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, LSE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program merges TILE columns of a row; `out` and `lse` are contiguous in rows."""
    if PDL:  # it may have started while the parts were still being computed
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    e = tl.load(partial_lse + row * parts + part, mask=part < parts, other=float("-inf"))
    top = tl.max(e, axis=0)
    base = tl.where(top == float("-inf"), 0.0, top)  # no part has a key
    weight = tl.math.exp2(e - base)
    total = tl.sum(weight, axis=0)
    some = tl.where(total == 0.0, 1.0, total)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    # What an empty part never wrote is not read: 0 × NaN would be NaN.
    inside = (e > float("-inf"))[:, None] & (column < WIDTH)[None, :]
    at = partial + (row * parts + part)[:, None] * WIDTH + column[None, :]
    result = tl.sum(tl.load(at, mask=inside, other=0.0) * weight[:, None], axis=0) / some
    tl.store(out + row * WIDTH + column, result.to(out.dtype.element_ty), mask=column < WIDTH)
    if LSE:
        value = (base + tl.math.log2(some)) * 0.6931471805599453
        value = tl.where(total == 0.0, float("-inf"), value)
        tl.store(lse + row, value, mask=tl.program_id(1) == 0)


def merge(partial, partial_lse, out, lse=None, dependent: bool = False) -> None:
    """Merge partial [rows, parts, width] into `out`, and their logarithms into `lse` if given.

    dependent  start while the kernel before ends, which has called `gdc_launch_dependents`
    """
    rows, parts, width = partial.shape
    whole = triton.next_power_of_2(parts)
    tile = max(16, min(128, triton.next_power_of_2(width), MERGED_AT_ONCE // whole))
    merge_kernel[(rows, triton.cdiv(width, tile))](
        partial,
        partial_lse,
        out,
        lse,
        parts,
        WIDTH=width,
        TILE=tile,
        PARTS=whole,
        LSE=lse is not None,
        PDL=dependent,
        num_warps=4 if parts > 8 else 2,
        **({"launch_pdl": True} if dependent else {}),
    )


def check_lengths(lengths, batch: int, capacity: int, least: int = 1) -> None:
    """ValueError unless lengths is int32 [batch] and, where the host knows, least to capacity."""
    if lengths.shape != (batch,) or lengths.dtype != torch.int32:
        got = f"{lengths.dtype} {tuple(lengths.shape)}"
        raise ValueError(f"lengths must be int32 [{batch}], one a sequence, got {got}")
    known = host_values(lengths)
    if known is not None and known.size and (known.min() < least or known.max() > capacity):
        raise ValueError(f"lengths must be from {least} to {capacity}, got {known.tolist()}")


def check_block_table(
    block_table, lengths, batch: int, pages: int, page_size: int, more: int = 0
) -> None:
    """ValueError unless block_table is int32 [batch, n], and names pages that the pool has.

    What the host knows is checked for the entries that a sequence uses, lengths + more.
    """
    if block_table.ndim != 2 or len(block_table) != batch or block_table.dtype != torch.int32:
        got = f"{block_table.dtype} {tuple(block_table.shape)}"
        raise ValueError(f"block_table must be int32 [{batch}, pages], got {got}")
    if not 8 <= page_size <= 256:
        raise ValueError(f"a page must hold 8 to 256 tokens, got {page_size}")
    if block_table.stride(1) != 1:
        raise ValueError("rows of block_table must be contiguous (last stride 1)")
    known, ends = host_values(block_table), host_values(lengths)
    if known is None or ends is None:
        return
    used = np.arange(known.shape[1]) * page_size < ends[:, None] + more
    outside = known[used & ((known < 0) | (known >= pages))]
    if outside.size:
        raise ValueError(
            f"block_table names page {outside[0]}, the pool has pages 0 to {pages - 1}"
        )

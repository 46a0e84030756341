"""Naive attention: three kernels, with the scores written to memory and read back between them.

The baseline of chapters 02 and 03. It is honest, not crippled: tensor cores, wide loads, softmax
in place in one pass where a row fits. What it cannot help is the [queries, keys] matrix in HBM.
"""

import torch
import triton
import triton.language as tl

from kernelbook import backend
from kernelbook.kernels._attention_inputs import check_qkv
from kernelbook.work import Work

LONGEST_ROW = 32768  # elements that one softmax program holds at once


def reference(q, k, v, causal=False, scale=None):
    """softmax(scale · q kᵀ + mask) v in plain PyTorch, in the dtype of its inputs.

    q [B, Hq, Sq, D], k and v [B, Hkv, Skv, D], Hq a multiple of Hkv; scale defaults to 1/√D.
    Causal is aligned to the end: query i sees keys j <= Skv - Sq + i. A row without keys is 0.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ k.transpose(-1, -2) * scale  # [B, Hq, Sq, Skv]
    if causal:
        shape = scores.shape[-2:]
        visible = torch.ones(shape, dtype=torch.bool, device=q.device).tril(shape[1] - shape[0])
        scores = scores.masked_fill(~visible, float("-inf"))
        return torch.softmax(scores, dim=-1).masked_fill(~visible, 0) @ v
    return torch.softmax(scores, dim=-1) @ v


def work_by_kernel(
    batch: int,
    query_heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    dtype: torch.dtype,
    causal: bool = False,
) -> dict[str, Work]:
    """Work of each of the three kernels. Causal makes no difference: the whole matrix is stored."""
    size = dtype.itemsize
    q = batch * query_heads * queries * head_dim * size
    k = batch * kv_heads * keys * head_dim * size
    scores = batch * query_heads * queries * keys
    product = 2 * scores * head_dim
    return {
        "scores_kernel": Work(product, q + k, scores * size),
        "softmax_kernel": Work(0, scores * size, scores * size),
        "values_kernel": Work(product, scores * size + k, q),
    }


def work(batch, query_heads, kv_heads, queries, keys, head_dim, dtype, causal=False) -> Work:
    """4 · B · Hq · Sq · Skv · D FLOPs (matrix products alone); the scores cross HBM four times."""
    kernels = work_by_kernel(batch, query_heads, kv_heads, queries, keys, head_dim, dtype)
    return sum(kernels.values(), Work(0, 0, 0))


@triton.jit
def scores_kernel(
    q,
    k,
    scores,
    scale,
    queries,
    keys,
    query_heads,
    groups,
    stride_qb,
    stride_qh,
    stride_qs,
    stride_qd,
    stride_kb,
    stride_kh,
    stride_ks,
    stride_kd,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILES: tl.constexpr,
):
    """scores[h, i, j] = scale · (q[h, i] · k[h // groups, j]), -inf where j lies in the future.

    A program keeps its queries and walks along TILES tiles of keys: the next keys arrive while
    the last scores leave, and L2 delivers BLOCK_N keys, not queries too, for a tile of scores.
    """
    head = tl.program_id(2).to(tl.int64)  # of all heads of the batch
    batch, h = head // query_heads, head % query_heads
    i = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    q += batch * stride_qb + h * stride_qh
    k += batch * stride_kb + (h // groups) * stride_kh
    q_at = q + i.to(tl.int64)[:, None] * stride_qs + d[None, :] * stride_qd
    q_exists = (i < queries)[:, None] & (d < HEAD_DIM)[None, :]
    q_tile = tl.load(q_at, mask=q_exists, other=0.0)  # [BLOCK_M, BLOCK_D]
    row = scores + (head * queries + i)[:, None] * keys  # 64 bits: B · Hq · Sq · Skv scores
    first = tl.program_id(0) * (TILES * BLOCK_N)
    for start in range(first, tl.minimum(first + TILES * BLOCK_N, keys), BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        k_at = k + j.to(tl.int64)[None, :] * stride_ks + d[:, None] * stride_kd
        k_exists = (d < HEAD_DIM)[:, None] & (j < keys)[None, :]
        k_tile = tl.load(k_at, mask=k_exists, other=0.0)  # [BLOCK_D, BLOCK_N]
        s = tl.dot(q_tile, k_tile, input_precision="ieee") * scale
        if CAUSAL:
            s = tl.where(j[None, :] <= i[:, None] + (keys - queries), s, float("-inf"))
        inside = (i < queries)[:, None] & (j < keys)[None, :]
        tl.store(row + j[None, :], s.to(scores.dtype.element_ty), mask=inside)


@triton.jit
def softmax_kernel(
    scores, rows, keys, WHOLE_ROW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Softmax of BLOCK_M rows, in place: scores become probabilities. Rows without keys give 0."""
    i = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tl.arange(0, BLOCK_N)
    tile = scores + i[:, None] * keys + j[None, :]
    exists = (i < rows)[:, None]
    if WHOLE_ROW:
        inside = exists & (j < keys)[None, :]
        x = tl.load(tile, mask=inside, other=float("-inf")).to(tl.float32)
        largest = tl.max(x, axis=1)
        # a row of -inf: subtracting -inf would give NaN
        largest = tl.where(largest == float("-inf"), 0.0, largest)
        p = tl.exp(x - largest[:, None])
        total = tl.sum(p, axis=1)
        total = tl.where(total == 0.0, 1.0, total)
        tl.store(tile, (p / total[:, None]).to(scores.dtype.element_ty), mask=inside)
    else:  # three passes over rows too long to hold; the last two find them in L2
        best = tl.full([BLOCK_M, BLOCK_N], float("-inf"), tl.float32)
        for start in range(0, keys, BLOCK_N):
            inside = exists & (j < keys - start)[None, :]
            x = tl.load(tile + start, mask=inside, other=float("-inf")).to(tl.float32)
            best = tl.maximum(best, x)
        largest = tl.max(best, axis=1)
        largest = tl.where(largest == float("-inf"), 0.0, largest)
        partial = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for start in range(0, keys, BLOCK_N):
            inside = exists & (j < keys - start)[None, :]
            x = tl.load(tile + start, mask=inside, other=float("-inf")).to(tl.float32)
            partial += tl.exp(x - largest[:, None])
        total = tl.sum(partial, axis=1)
        total = tl.where(total == 0.0, 1.0, total)
        for start in range(0, keys, BLOCK_N):
            inside = exists & (j < keys - start)[None, :]
            x = tl.load(tile + start, mask=inside, other=float("-inf")).to(tl.float32)
            p = tl.exp(x - largest[:, None]) / total[:, None]
            tl.store(tile + start, p.to(scores.dtype.element_ty), mask=inside)


@triton.jit
def values_kernel(
    probabilities,
    v,
    out,
    queries,
    keys,
    query_heads,
    groups,
    stride_vb,
    stride_vh,
    stride_vs,
    stride_vd,
    stride_ob,
    stride_oh,
    stride_os,
    stride_od,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """out[h, i] = sum over j of probabilities[h, i, j] · v[h // groups, j]."""
    head = tl.program_id(1).to(tl.int64)
    batch, h = head // query_heads, head % query_heads
    i = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    v += batch * stride_vb + (h // groups) * stride_vh
    p_tile = probabilities + (head * queries + i)[:, None] * keys + j[None, :]
    v_tile = v + j[:, None] * stride_vs + d[None, :] * stride_vd
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    for start in range(0, keys, BLOCK_N):
        inside = j < keys - start
        p = tl.load(p_tile, mask=(i < queries)[:, None] & inside[None, :], other=0.0)
        v_block = tl.load(v_tile, mask=inside[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
        acc = tl.dot(p, v_block, acc, input_precision="ieee")
        p_tile += BLOCK_N
        v_tile += BLOCK_N * stride_vs
    out += batch * stride_ob + h * stride_oh
    to = out + i.to(tl.int64)[:, None] * stride_os + d[None, :] * stride_od
    inside = (i < queries)[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(to, acc.to(out.dtype.element_ty), mask=inside)


def _no_tensor_cores(dtype: torch.dtype, device) -> bool:
    return dtype == torch.float32 or backend.capability(device) < (8, 0)


def _tile_m(queries: int, dtype: torch.dtype, head_dim: int, device) -> int:
    """Rows of a tile: 128 for tensor cores, fewer where fp32 or a wide head fills the registers."""
    if _no_tensor_cores(dtype, device):
        most = 64 if head_dim <= 64 else 32
    else:
        most = 128 if head_dim <= 128 else 64
    return max(16, min(most, triton.next_power_of_2(queries)))


def scores_config(queries: int, keys: int, head_dim: int, dtype: torch.dtype, device=None):
    """(queries, keys of a tile, tiles of a program, warps, stages) of the scores' kernel."""
    if _no_tensor_cores(dtype, device):
        block_m, block_n, num_stages = 64 if head_dim <= 64 else 32, 32, 2 if head_dim <= 128 else 1
    elif head_dim > 128:
        block_m, block_n, num_stages = 64, 32, 2
    else:
        block_m, block_n, num_stages = 128, 64, 3
    block_m = max(16, min(block_m, triton.next_power_of_2(queries)))
    block_n = max(16, min(block_n, triton.next_power_of_2(keys)))
    # Few queries: more programs are worth more than keeping the queries.
    tiles = 1 if queries <= 16 else 8
    return block_m, block_n, tiles, 4, num_stages


def write_scores(q, k, scores, causal: bool, scale: float) -> None:
    """scores [B, Hq, Sq, Skv] (contiguous) = scale · q kᵀ, future keys at -inf."""
    batch, query_heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    block_m, block_n, tiles, num_warps, num_stages = scores_config(
        queries, keys, head_dim, q.dtype, q.device
    )
    grid = (triton.cdiv(keys, tiles * block_n), triton.cdiv(queries, block_m), batch * query_heads)
    scores_kernel[grid](
        q,
        k,
        scores,
        scale,
        queries,
        keys,
        query_heads,
        query_heads // kv_heads,
        *q.stride(),
        *k.stride(),
        HEAD_DIM=head_dim,
        CAUSAL=causal,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        TILES=tiles,
        num_warps=num_warps,
        num_stages=num_stages,
    )


def softmax_rows(scores) -> None:
    """Softmax over the last dimension of `scores` (contiguous), in place."""
    keys = scores.shape[-1]
    rows = scores.numel() // keys
    block_n = min(max(16, triton.next_power_of_2(keys)), LONGEST_ROW)
    block_m = max(1, 2048 // block_n)
    softmax_kernel[(triton.cdiv(rows, block_m),)](
        scores,
        rows,
        keys,
        WHOLE_ROW=keys <= LONGEST_ROW,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=max(4, min(16, block_n // 512)),  # 16 elements a thread where a row is short
    )


def weigh_values(probabilities, v, out) -> None:
    """out [B, Hq, Sq, D] = probabilities [B, Hq, Sq, Skv] @ v."""
    batch, query_heads, queries, keys = probabilities.shape
    kv_heads, head_dim = v.shape[1], v.shape[3]
    block_m = _tile_m(queries, v.dtype, head_dim, v.device)
    most = 32 if _no_tensor_cores(v.dtype, v.device) else 64
    values_kernel[(triton.cdiv(queries, block_m), batch * query_heads)](
        probabilities,
        v,
        out,
        queries,
        keys,
        query_heads,
        query_heads // kv_heads,
        *v.stride(),
        *out.stride(),
        HEAD_DIM=head_dim,
        BLOCK_M=block_m,
        BLOCK_N=max(16, min(most, triton.next_power_of_2(keys))),
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        num_warps=8 if block_m == 128 or head_dim > 128 else 4,
        num_stages=3 if most == 64 and head_dim <= 128 else 2,  # 96 KiB at most
    )


def attention_naive(q, k, v, causal=False, scale=None, out=None):
    """softmax(scale · q kᵀ + mask) v by three kernels and a matrix of scores in memory.

    q [B, Hq, Sq, D], k and v [B, Hkv, Skv, D], any strides, D 8..256, fp16, bf16 or fp32; causal is
    aligned to the end. Scores are kept in the dtype of q: B · Hq · Sq · Skv elements. Raises
    ValueError where shapes, dtypes or devices do not fit.
    """
    check_qkv(q, k, v)
    if k.shape[2] == 0:
        raise ValueError("there must be at least one key, got Skv = 0")
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    if out.shape != q.shape or out.dtype != q.dtype or 0 in out.stride():
        raise ValueError(
            f"out must be like q, {tuple(q.shape)} {q.dtype}, each element with a place of its "
            f"own, got {tuple(out.shape)} {out.dtype}, strides {out.stride()}"
        )
    backend.same_device(q=q, out=out)
    if out.numel() == 0:
        return out
    scores = q.new_empty(*q.shape[:3], k.shape[2])
    write_scores(q, k, scores, causal, float(q.shape[3] ** -0.5 if scale is None else scale))
    softmax_rows(scores)
    weigh_values(scores, v, out)
    return out

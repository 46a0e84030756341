"""Shared-prefix attention: what all sequences begin with is read once for the whole batch.

Decode reads a system prompt that B sequences share B times, even from one copy in memory: each
sequence is a group of its own. Cascade turns that around. Against the prefix, all sequences'
queries are queries of *one* sequence, so they are rows of the same matrix products and each key is
read once; against its own suffix each sequence attends as ever. Two partial results merge exactly:

    out = (e^x out_prefix + e^y out_suffix) / (e^x + e^y),   x, y their log-sum-exps
"""

import torch
import triton
import triton.language as tl

from kernelbook import backend
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels.attention_paged import attention_paged, gather
from kernelbook.work import Work

ELEMENTS = 512  # of output that a merging program holds


def reference(q, prefix_k, prefix_v, k, v, lengths, scale=None, block_table=None) -> torch.Tensor:
    """Each sequence's prefix and suffix put together, then attention, one after another."""
    if block_table is not None:
        k, v = gather(k, block_table), gather(v, block_table)
    whole = [
        decode.reference(
            q[b : b + 1],
            torch.cat([prefix_k, k[b, :, :n]], dim=1)[None],
            torch.cat([prefix_v, v[b, :, :n]], dim=1)[None],
            scale=scale,
        )
        for b, n in enumerate(map(int, lengths))
    ]
    return torch.cat(whole)


def work(
    query_heads, kv_heads, prefix, lengths, head_dim, dtype, page_size=None
) -> Work:  # fmt: skip
    """4 FLOPs a pair and head dimension; the prefix read once, each suffix once.

    lengths  tokens of each sequence's suffix (a list). What the two parts add is `merge_work`.
    """
    batch, itemsize = len(lengths), dtype.itemsize
    out = batch * query_heads * head_dim * itemsize
    kv = 2 * kv_heads * (prefix + sum(lengths)) * head_dim * itemsize
    metadata = 4 * batch
    metadata += sum(4 * triton.cdiv(n, page_size) for n in lengths) if page_size else 0
    flops = 4 * query_heads * (batch * prefix + sum(lengths)) * head_dim
    return Work(flops, out + kv + metadata, out)


def merge_work(batch, query_heads, head_dim, dtype) -> Work:
    """The price of two parts: q read twice, two outputs and log-sum-exps written and read."""
    rows = batch * query_heads
    out = rows * head_dim * dtype.itemsize
    return Work(0, 3 * out + 8 * rows, 2 * out + 8 * rows)


@triton.jit(do_not_specialize=["batch", "heads"])
def merge_pair_kernel(
    prefix, prefix_lse, suffix, suffix_lse, out, lse, batch, heads,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    """Merge ROWS rows: [B, H] in the suffix and in `out`, but [H, B] in the prefix."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    known = row < batch * heads
    turned = row % heads * batch + row // heads
    x = tl.load(prefix_lse + turned, mask=known, other=0.0)
    y = tl.load(suffix_lse + row, mask=known, other=0.0)
    top = tl.maximum(x, y)  # finite: the prefix has a token
    of_prefix = tl.math.exp2((x - top) * 1.4426950408889634)
    of_suffix = tl.math.exp2((y - top) * 1.4426950408889634)  # 0 for a suffix without a token
    total = of_prefix + of_suffix

    column = tl.arange(0, WIDTH)
    inside = known[:, None] & (column < HEAD_DIM)[None, :]
    at = turned[:, None] * HEAD_DIM + column[None, :]
    acc = tl.load(prefix + at, mask=inside, other=0.0).to(tl.float32) * of_prefix[:, None]
    at = row[:, None] * HEAD_DIM + column[None, :]
    acc += tl.load(suffix + at, mask=inside, other=0.0).to(tl.float32) * of_suffix[:, None]
    tl.store(out + at, (acc / total[:, None]).to(out.dtype.element_ty), mask=inside)
    if LSE:
        tl.store(lse + row, top + tl.math.log2(total) * 0.6931471805599453, mask=known)


def _check(q, prefix_k, prefix_v, k):
    shapes = f"q {tuple(q.shape)}, prefix {tuple(prefix_k.shape)} and {tuple(prefix_v.shape)}"
    if q.ndim != 4 or q.shape[2] != 1:
        raise ValueError(f"q must be [B, Hq, 1, D], one token a sequence, got {shapes}")
    if prefix_k.ndim != 3 or prefix_k.shape != prefix_v.shape:
        raise ValueError(f"prefix_k and prefix_v must both be [Hkv, P, D], got {shapes}")
    if prefix_k.shape[1] == 0:
        raise ValueError("the prefix holds no token: attention_decode does without it")
    if k.ndim != 4 or prefix_k.shape[0] != k.shape[1]:
        raise ValueError(f"prefix and k must agree in KV heads, got {shapes}, k {tuple(k.shape)}")
    backend.same_device(q=q, prefix_k=prefix_k, k=k)


def attention_cascade(
    q, prefix_k, prefix_v, k, v, lengths, scale=None, block_table=None, return_lse=False
):  # fmt: skip
    """softmax(scale · q [prefix_k, k]ᵀ) [prefix_v, v]: decode with a prefix that all share.

    q                   [B, Hq, 1, D]
    prefix_k, prefix_v  [Hkv, P, D], P at least 1, any strides
    k, v, lengths       each sequence's own KV behind the prefix, as in `attention_decode`; with
                        `block_table` as in `attention_paged`

    Three launches: the batch against the prefix, each sequence against its suffix, the merge; one
    more for each of the two that is split. Both parts are rounded to q's dtype before they merge.
    Pays where B × P is long against the suffixes; for one sequence, or a short prefix, it is two or
    three launches more than plain decode.

    Returns out [B, Hq, 1, D]; with `return_lse` also the natural logarithm of each row's sum of
    exponentials, fp32 [B, Hq, 1]. Raises ValueError for other shapes, dtypes or devices.
    Source: Juravsky et al., Hydragen (2024); Ye et al., FlashInfer's cascade inference (2024).
    """
    _check(q, prefix_k, prefix_v, k)
    batch, heads, _, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if return_lse else None
    if out.numel() == 0:
        return (out, lse) if return_lse else out
    together = q.permute(2, 1, 0, 3)  # [1, Hq, B, D]: the batch as queries of one sequence
    options = {"scale": scale, "return_lse": True}
    of_prefix = decode.attention_decode(together, prefix_k[None], prefix_v[None], **options)
    if block_table is None:
        of_suffix = decode.attention_decode(q, k, v, lengths, **options)
    else:
        of_suffix = attention_paged(q, k, v, block_table, lengths, **options)
    width = max(16, triton.next_power_of_2(head_dim))
    rows = max(1, ELEMENTS // width)
    merge_pair_kernel[(triton.cdiv(batch * heads, rows),)](
        *of_prefix, *of_suffix, out, lse, batch, heads,
        HEAD_DIM=head_dim, WIDTH=width, ROWS=rows, LSE=return_lse, num_warps=4,
    )  # fmt: skip
    return (out, lse) if return_lse else out

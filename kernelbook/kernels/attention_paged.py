"""Decode over paged KV: a block table says on which page of a pool each run of tokens lies.

The kernel is split-KV decode's (`_split_kv`), with one more load in front of each tile of keys: the
page's number. It is read one tile ahead, so that nothing waits for it. A page costs 4 bytes of
table and the unused end of a sequence's last page; in return sequences grow without being moved,
and may share pages.

Weakest at pages below 64 tokens, where the rows of a tile lie on several pages and each needs an
address of its own: 0.86 to 0.97 of the contiguous kernel's speed at pages of 16 (H200). Two
programs an SM help. Tried there while tiles were chosen, and left out: 8 warps (0.70 to 0.94),
tiles of 128 tokens (0.69 to 0.92) and of 32 tokens (0.58 to 0.87).
"""

import torch
import triton

from kernelbook.kernels import _split_launch, attention_decode
from kernelbook.kernels._split_launch import Cache, host_values
from kernelbook.work import Work

__all__ = ["attention_paged", "gather", "reference", "work"]


def gather(pages, block_table) -> torch.Tensor:
    """Contiguous KV [B, Hkv, pages · page size, D] from a pool: what fused paging does not write.

    pages [N, Hkv, page size, D] or scales [N, Hkv, page size]; entries below 0 count as page 0.
    """
    found = pages[block_table.long().clamp(min=0)]  # [B, pages, Hkv, page size, ...]
    return found.transpose(1, 2).flatten(2, 3)


def reference(q, k_pages, v_pages, block_table, lengths, causal=False, scale=None) -> torch.Tensor:
    """Gather the pages, then attend; the arguments are `attention_paged`'s."""
    k, v = gather(k_pages, block_table), gather(v_pages, block_table)
    return attention_decode.reference(q, k, v, lengths, causal, scale)


def work(
    batch, query_heads, kv_heads, lengths, head_dim, dtype, page_size, queries=1, causal=False,
    kv_bytes=None,
) -> Work:  # fmt: skip
    """As `attention_decode.work` with a list of lengths, and 4 bytes a page in use.

    Pages shared by sequences are counted for each of them: HBM may be asked for them once.
    """
    contiguous = attention_decode.work(
        batch, query_heads, kv_heads, list(lengths), head_dim, dtype, queries, causal, kv_bytes
    )
    return contiguous + Work(0, 4 * sum(triton.cdiv(n, page_size) for n in lengths), 0)


def check_table(block_table, lengths, batch: int, pool: int, page_size: int) -> None:
    """Raise ValueError for a table of another shape or type, or that leaves the pool."""
    shape = tuple(block_table.shape)
    if block_table.ndim != 2 or shape[0] != batch or block_table.dtype != torch.int32:
        raise ValueError(
            f"block_table must be int32 [{batch}, pages], got {block_table.dtype} {shape}"
        )
    if not 8 <= page_size <= 256:
        raise ValueError(f"a page must hold 8 to 256 tokens, got {page_size}")
    table, known = host_values(block_table), host_values(lengths)
    if table is None or known is None or known.shape != (batch,):
        return
    if known.max(initial=0) > shape[1] * page_size:
        raise ValueError(f"lengths must be integers from 1 to {shape[1] * page_size}, got {known}")
    for sequence, length in enumerate(known.tolist()):
        used = table[sequence, : -(-int(length) // page_size)]
        outside = used[(used < 0) | (used >= pool)]
        if outside.size:
            raise ValueError(
                f"block_table of sequence {sequence} names page {outside[0]}, the pool has pages "
                f"0 to {pool - 1}"
            )


def attention_paged(
    q, k_pages, v_pages, block_table, lengths, causal=False, scale=None, return_lse=False,
    splits=None, merge=None,
):  # fmt: skip
    """softmax(scale · q kᵀ) v for few queries, keys and values on pages of a pool.

    q                 [B, Hq, Sq, D]
    k_pages, v_pages  [N, Hkv, page size, D], any strides (a pool laid out [N, page size, Hkv, D]
                      comes as its transpose(1, 2)); 8 to 256 tokens a page
    block_table       int32 [B, pages] on q's device: token t of sequence b lies on page
                      block_table[b, t // page size], in any order; sequences may share pages.
                      Entries beyond a sequence's length are not read.
    lengths           tokens of each sequence, at most pages · page size, as in `attention_decode`

    Other arguments, dtypes and results are `attention_decode`'s. Raises ValueError for other
    shapes, dtypes or devices, and for a table that leaves the pool where the host can know (CPU
    tensors); on a GPU nothing is checked, as that would wait for the device.
    Source: Kwon et al., PagedAttention (2023).
    """
    if lengths is None:
        raise ValueError("paged KV needs lengths, one for each sequence")
    if k_pages.ndim == 4:
        check_table(block_table, lengths, q.shape[0], k_pages.shape[0], k_pages.shape[2])
    cache = Cache(k_pages, v_pages, table=block_table)
    return _split_launch.launch(q, cache, lengths, causal, scale, return_lse, splits, merge)

"""Split-KV decode: few queries, long contiguous KV, enough programs to fill the GPU.

Decode reads each key and value once for very few FLOPs: HBM is the ceiling, and the fault to avoid
is too few programs to reach it. The kernels are in `_split_kv`; here are the operator, its work and
its reference.

Slower on an H200 (32 / 8 heads of 128, bf16, 1 × 8k tokens, 13.7 µs): merging in the last arriver
(15.5) and one program an SM that takes several splits (15.6). While the tiles were chosen, tiles of
128 tokens took 5% longer there, and twice the splits 5%; where groups fill the SMs by themselves,
tiles of 128 tokens are 1% ahead.
"""

import torch

from kernelbook import backend
from kernelbook.kernels import _split_launch, attention_prefill
from kernelbook.kernels._split_launch import Cache, choose_splits, default_splits, merge_work, tile
from kernelbook.work import Work

__all__ = [
    "attention_decode",
    "choose_splits",
    "default_splits",
    "merge_work",
    "reference",
    "tile",
    "tile_of",
    "work",
]


def reference(q, k, v, lengths=None, causal=False, scale=None) -> torch.Tensor:
    """Attention of each sequence to the first `lengths[b]` tokens of its KV, one after another."""
    lengths = [k.shape[2]] * q.shape[0] if lengths is None else lengths
    return torch.cat(
        [
            attention_prefill.reference(
                q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n], causal, scale
            )
            for b, n in enumerate(map(int, lengths))
        ]
    )


def work(
    batch, query_heads, kv_heads, lengths, head_dim, dtype, queries=1, causal=False, kv_bytes=None
) -> Work:
    """4 FLOPs a visible pair and head dimension; q and each key and value within the lengths read
    once, out written once. What splitting adds is `merge_work`.

    lengths   one number for all sequences, or a list (then 4 bytes each are read, too)
    kv_bytes  of one token's keys or values in one head, where that is not head_dim · itemsize
    """
    ragged = not isinstance(lengths, int)
    lengths = list(lengths) if ragged else [lengths] * batch
    pairs = sum(attention_prefill.visible_pairs(queries, n, causal) for n in lengths)
    out = batch * query_heads * queries * head_dim * dtype.itemsize
    kv = 2 * kv_heads * sum(lengths) * (kv_bytes or head_dim * dtype.itemsize)
    return Work(4 * query_heads * pairs * head_dim, out + kv + 4 * batch * ragged, out)


def tile_of(q, k, page: int = 0) -> int:
    """Tokens of a tile that `attention_decode` takes for these tensors."""
    batch, query_heads, queries, head_dim = q.shape
    sizes = (batch, query_heads, k.shape[1], head_dim, queries, q.dtype, k.dtype, q.device)
    return tile(*sizes, page).block_n


def attention_decode(
    q, k, v, lengths=None, causal=False, scale=None, return_lse=False,
    splits=None, merge=None, persistent=False,
):  # fmt: skip
    """softmax(scale · q kᵀ) v for few queries and long KV, each sequence with its own length.

    q        [B, Hq, Sq, D]; Sq is 1 in decode, more for drafted tokens or a chunk of a prompt
    k, v     [B, Hkv, capacity, D], any strides; query head h reads KV head h // (Hq / Hkv)
    lengths  tokens of each sequence, the new ones included: int32 tensor [B] on q's device, read
             when the kernel runs, so that a captured graph follows it; or a list or CPU tensor,
             which is checked. None: all of `capacity`. A GPU's int32 tensor is not checked, but
             nothing beyond capacity is read, and a length of 0 gives 0 with a log-sum-exp of -inf.
    causal   aligned to the end: query i sees the keys j <= length - Sq + i
    splits   runs that each sequence's KV is cut into; default `choose_splits` of the capacity
    merge    "last": the last program of a group merges; "kernel": a second launch does, on Hopper
             while the first one ends (programmatic dependent launch). Default: there the second
             launch, which measured faster, elsewhere the last program
    persistent  one program for each SM, each taking several splits in turn

    D from 8 to 256; fp16, bf16 or fp32, sums in fp32 (no tf32). `scale` defaults to 1 / sqrt(D).
    Returns out [B, Hq, Sq, D], contiguous; with `return_lse` also the natural logarithm of each
    row's sum of exponentials, fp32 [B, Hq, Sq]. Raises ValueError for other shapes, dtypes,
    devices, and for lengths outside 1..capacity where the host can know. Calls on one stream share
    counters, so graphs captured on the same stream must not run at the same time with "last".
    Source: Dao et al., Flash-Decoding (2023).
    """
    programs = backend.sms(q.device) if persistent else None
    return _split_launch.launch(
        q, Cache(k, v), lengths, causal, scale, return_lse, splits, merge, programs
    )

"""Decode over int8 or fp8 KV, dequantized in registers: half the bytes of bf16 KV.

The scale of a key multiplies its score, and the scale of a value its weight, so codes go into the
matrix products as they are: no dequantized key or value exists anywhere.

    score_j = scale · k_scale_j · (q · code_j),   out = Σ_j (p_j · v_scale_j) code_j / Σ_j p_j

fp8 becomes fp16 on the way (one instruction for two), int8 the queries' dtype. Contiguous or paged;
kernels in `_split_kv`, and in `_byte_pairs` where two codes are read at a time.

Half the bytes, but more instructions a byte: it is they that limit long batches. Tried on an H200
while tiles were chosen, and left out (64 × 8k, int8 281 µs, bf16 484): 8 warps of 128 registers
359, tiles of 256 tokens 329, of 64 tokens and 128 registers 314.
"""

import torch

from kernelbook.kernels import _split_launch, attention_decode, attention_paged
from kernelbook.kernels._split_launch import Cache
from kernelbook.kernels.kv_quantize import LARGEST, dequantize, refuse_fp8
from kernelbook.work import Work

__all__ = ["attention_quantized", "reference", "work"]


def reference(
    q, k, v, k_scale, v_scale, lengths=None, block_table=None, causal=False, scale=None
) -> torch.Tensor:
    """Dequantize to q's dtype, then attend; the arguments are `attention_quantized`'s."""
    k, v = dequantize(k, k_scale, q.dtype), dequantize(v, v_scale, q.dtype)
    if block_table is None:
        return attention_decode.reference(q, k, v, lengths, causal, scale)
    return attention_paged.reference(q, k, v, block_table, lengths, causal, scale)


def work(
    batch, query_heads, kv_heads, lengths, head_dim, dtype, page_size=0, queries=1, causal=False
) -> Work:
    """As `attention_decode.work`, one byte an element of KV and 4 a token's scale in a head.

    dtype is the queries'; with a page_size, lengths is a list, and 4 bytes a page are read.
    """
    sizes = (batch, query_heads, kv_heads, lengths, head_dim, dtype)
    if page_size:
        return attention_paged.work(*sizes, page_size, queries, causal, kv_bytes=head_dim + 4)
    return attention_decode.work(*sizes, queries, causal, kv_bytes=head_dim + 4)


def check_codes(q, k, v, k_scale, v_scale) -> None:
    """Raise ValueError unless k and v hold codes of one kind, each with its scales."""
    if k.dtype not in LARGEST or v.dtype != k.dtype:
        raise ValueError(f"k and v must both be int8 or fp8 (e4m3), got {k.dtype}, {v.dtype}")
    for name, scales in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scales.dtype != torch.float32 or scales.shape != k.shape[:3]:
            raise ValueError(
                f"{name} must be fp32 {tuple(k.shape[:3])}, one for each token and head, got "
                f"{scales.dtype} {tuple(scales.shape)}"
            )
    refuse_fp8(q, k.dtype)


def attention_quantized(
    q, k, v, k_scale, v_scale, lengths=None, block_table=None, causal=False, scale=None,
    return_lse=False, splits=None, merge=None,
):  # fmt: skip
    """softmax(scale · q kᵀ) v with k = codes · k_scale and v = codes · v_scale.

    q                 [B, Hq, Sq, D] in fp16, bf16 or fp32
    k, v              codes, int8 or torch.float8_e4m3fn: [B, Hkv, capacity, D], or with a
                      block_table pages of a pool, [N, Hkv, page size, D]; any strides
    k_scale, v_scale  fp32, shaped like k without its last dimension: `kv_quantize` makes both
    lengths, block_table and the rest: as in `attention_decode` and `attention_paged`

    Products take codes as fp16 (fp8, and int8 with fp16 queries), bf16 or fp32 and are summed in
    fp32. Returns as `attention_decode`. Raises ValueError as these do, for codes without matching
    scales, and for fp8 on a GPU before sm_89.
    """
    check_codes(q, k, v, k_scale, v_scale)
    if block_table is not None:
        if lengths is None:
            raise ValueError("paged KV needs lengths, one for each sequence")
        attention_paged.check_table(block_table, lengths, q.shape[0], k.shape[0], k.shape[2])
    cache = Cache(k, v, k_scale, v_scale, block_table)
    return _split_launch.launch(q, cache, lengths, causal, scale, return_lse, splits, merge)

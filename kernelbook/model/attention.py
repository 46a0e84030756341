"""Attention as PyTorch has it: in three steps, and in one call.

Every attention of the course has this signature, so that the model can swap it:
`f(q, k, v, causal=False, scale=None)`, q [B, Hq, Sq, D], k and v [B, Hkv, Skv, D], out like q.
Causal is aligned to the end: query i sees keys j <= Skv - Sq + i, right with a cache too.
"""

import torch
import torch.nn.functional as F


def causal_mask(queries: int, keys: int, device) -> torch.Tensor:
    """[Sq, Skv], True where query i may see key j: j <= Skv - Sq + i."""
    ones = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return ones.tril(diagonal=keys - queries)


def plain_attention(q, k, v, causal: bool = False, scale: float | None = None) -> torch.Tensor:
    """softmax(q kᵀ · scale) v, scores written out: obviously right, the model's default.

    The queries of a group are laid one after another, so K and V are not copied for GQA.
    """
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    scale = head_dim**-0.5 if scale is None else scale
    rows = q.reshape(batch, kv_heads, heads // kv_heads * queries, head_dim)
    scores = rows @ k.transpose(-2, -1) * scale  # [B, Hkv, group · Sq, Skv]
    scores = scores.view(batch, heads, queries, keys)
    if causal and queries > 1:
        scores = scores.masked_fill(~causal_mask(queries, keys, q.device), float("-inf"))
    # fp32 whatever the inputs: bf16 has 8 bits of mantissa, too few to sum thousands of terms
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
    return (weights.view(batch, kv_heads, -1, keys) @ v).view(q.shape)


def sdpa_attention(q, k, v, causal: bool = False, scale: float | None = None) -> torch.Tensor:
    """PyTorch's scaled_dot_product_attention; which kernel runs is the caller's to name."""
    queries, keys = q.shape[2], k.shape[2]
    square = queries == keys
    # is_causal is aligned to the start, and one query sees everything: mask only in between
    mask = None
    if causal and not square and queries > 1:
        mask = causal_mask(queries, keys, q.device)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=causal and square,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )

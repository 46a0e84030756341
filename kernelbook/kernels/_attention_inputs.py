"""What attention takes, checked in one place: the words are the same whichever kernel is called."""

import math

import torch

from kernelbook import backend

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def check_shapes(q, k, v, pool: bool = False) -> None:
    """ValueError, saying what was given, unless q [B, Hq, Sq, D] and k, v [B, Hkv, Skv, D] fit.

    Hq a multiple of Hkv, D from 8 to 256. In a pool, the first dimension of k and v counts pages.
    """
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.ndim != 4 or k.ndim != 4 or v.shape != k.shape:
        kind = "[pages, Hkv, page size, D]" if pool else "[B, Hkv, Skv, D]"
        raise ValueError(f"q must be [B, Hq, Sq, D], k and v both {kind}, got {shapes}")
    if q.shape[3] != k.shape[3] or (not pool and q.shape[0] != k.shape[0]):
        raise ValueError(f"q, k and v must agree in batch and head dimension, got {shapes}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"query heads must be a multiple of KV heads, got {q.shape[1]} and {k.shape[1]}"
        )
    if not 8 <= q.shape[3] <= 256:
        raise ValueError(f"head dimension must be from 8 to 256, got {q.shape[3]}")


def check_dtypes(q, k, v) -> None:
    """ValueError unless all three have one of DTYPES."""
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        raise ValueError(
            f"q, k and v must all be fp16, bf16 or fp32, got {q.dtype}, {k.dtype}, {v.dtype}"
        )


def check_scale(scale: float) -> None:
    """ValueError unless scores can be multiplied by it and still be told apart."""
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be positive and finite, got {scale}")


def check_qkv(q, k, v) -> None:
    """ValueError unless q, k and v fit in shape and are of one dtype and device."""
    check_shapes(q, k, v)
    check_dtypes(q, k, v)
    backend.same_device(q=q, k=k, v=v)

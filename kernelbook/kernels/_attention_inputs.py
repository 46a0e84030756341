"""What attention takes, checked in one place: the words are the same whichever kernel is called."""

import torch

from kernelbook import backend

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def check_qkv(q, k, v) -> None:
    """ValueError, saying what was given, unless q [B, Hq, Sq, D] and k, v [B, Hkv, Skv, D] fit.

    Hq a multiple of Hkv, D from 8 to 256, one of DTYPES and one device for all three.
    """
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.ndim != 4 or k.ndim != 4 or v.shape != k.shape:
        raise ValueError(f"q must be [B, Hq, Sq, D], k and v both [B, Hkv, Skv, D], got {shapes}")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q, k and v must agree in batch and head dimension, got {shapes}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"query heads must be a multiple of KV heads, got {q.shape[1]} and {k.shape[1]}"
        )
    if not 8 <= q.shape[3] <= 256:
        raise ValueError(f"head dimension must be from 8 to 256, got {q.shape[3]}")
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        raise ValueError(
            f"q, k and v must all be fp16, bf16 or fp32, got {q.dtype}, {k.dtype}, {v.dtype}"
        )
    backend.same_device(q=q, k=k, v=v)

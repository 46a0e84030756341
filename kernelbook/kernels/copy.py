"""Copy: it only moves bytes, hence it is the ceiling for kernels that do little else."""

import torch
import triton
import triton.language as tl

from kernelbook import backend
from kernelbook.work import Work

BLOCK = 4096
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def reference(x: torch.Tensor) -> torch.Tensor:
    """out[i] = x[i]."""
    return x.clone()


def work(elements: int, dtype: torch.dtype) -> Work:
    """Each element read once and written once; no arithmetic."""
    return Work(0, elements * dtype.itemsize, elements * dtype.itemsize)


@triton.jit
def copy_kernel(x, out, n, BLOCK: tl.constexpr):
    """out[i] = x[i]; one program for BLOCK neighboring elements."""
    # 64 bits: above 2^31 elements a 32-bit offset wraps around.
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


def copy(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Copy of `x` (contiguous, any shape, fp16, bf16 or fp32), into `out` where it is given.

    Raises ValueError for another dtype, a tensor that is not contiguous, or an `out` that does
    not match `x`.
    """
    if x.dtype not in DTYPES:
        raise ValueError(f"x must be fp16, bf16 or fp32, got {x.dtype}")
    if not x.is_contiguous():
        raise ValueError(f"x must be contiguous, got strides {x.stride()}: call .contiguous()")
    out = torch.empty_like(x) if out is None else out
    if out.shape != x.shape or out.dtype != x.dtype or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous and like x, {tuple(x.shape)} {x.dtype}, "
            f"got {tuple(out.shape)} {out.dtype}, strides {out.stride()}"
        )
    backend.same_device(x=x, out=out)
    if x.numel():
        copy_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), BLOCK=BLOCK, num_warps=8)
    return out

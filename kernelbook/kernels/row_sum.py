"""Row sum: a reduction reads everything and writes next to nothing."""

import torch
import triton
import triton.language as tl

from kernelbook import backend
from kernelbook.work import Work

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def reference(x: torch.Tensor) -> torch.Tensor:
    """out[r] = sum over c of x[r, c], in fp32 (float64 for float64 input)."""
    return x.sum(dim=1, dtype=torch.promote_types(x.dtype, torch.float32))


def work(rows: int, columns: int, dtype: torch.dtype) -> Work:
    """One addition an element; x [rows, columns] read once, an fp32 a row written."""
    return Work(rows * columns, rows * columns * dtype.itemsize, rows * 4)


@triton.jit
def row_sum_kernel(x, out, columns, stride, BLOCK: tl.constexpr):
    """One program sums one row, BLOCK partial sums side by side, and adds those up at the end."""
    row = tl.program_id(0).to(tl.int64)
    partial = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        c = start + tl.arange(0, BLOCK)
        partial += tl.load(x + row * stride + c, mask=c < columns, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(partial, axis=0))


def row_sum(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Sum of each row of `x` [R, C] as fp32 [R].

    The elements of a row must be neighbors (stride 1); rows may lie apart. Inputs are fp16, bf16
    or fp32, added up in fp32. Raises ValueError for anything else.
    """
    if x.ndim != 2:
        raise ValueError(f"x must be [rows, columns], got {tuple(x.shape)}")
    if x.dtype not in DTYPES:
        raise ValueError(f"x must be fp16, bf16 or fp32, got {x.dtype}")
    rows, columns = x.shape
    if columns > 1 and x.stride(1) != 1:
        raise ValueError(f"x must have stride 1 along its columns, got strides {x.stride()}")
    out = x.new_empty(rows, dtype=torch.float32) if out is None else out
    if out.shape != (rows,) or out.dtype != torch.float32 or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous ({rows},) fp32, got {tuple(out.shape)} {out.dtype}"
        )
    backend.same_device(x=x, out=out)
    block = min(max(triton.next_power_of_2(columns), 16), 4096)
    if rows:
        row_sum_kernel[(rows,)](x, out, columns, x.stride(0), BLOCK=block, num_warps=8)
    return out

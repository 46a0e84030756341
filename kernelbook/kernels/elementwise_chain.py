"""An elementwise chain, relu(scale · x + y): three operations in one pass over memory."""

import torch
import triton
import triton.language as tl

from kernelbook import backend
from kernelbook.work import Work

BLOCK = 2048
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def reference(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
    """out = relu(scale · x + y). In PyTorch three operations, each with a trip to memory."""
    return torch.relu(scale * x + y)


def work(elements: int, dtype: torch.dtype) -> Work:
    """Multiply, add, maximum: three FLOPs an element; x and y read once, out written once."""
    return Work(3 * elements, 2 * elements * dtype.itemsize, elements * dtype.itemsize)


@triton.jit
def elementwise_chain_kernel(x, y, out, scale, n, BLOCK: tl.constexpr):
    """out[i] = max(scale · x[i] + y[i], 0), in fp32 between the load and the store."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n).to(tl.float32)
    b = tl.load(y + i, mask=i < n).to(tl.float32)
    result = tl.maximum(scale * a + b, 0.0)
    tl.store(out + i, result.to(out.dtype.element_ty), mask=i < n)


def elementwise_chain(
    x: torch.Tensor, y: torch.Tensor, scale: float, out: torch.Tensor | None = None
) -> torch.Tensor:
    """relu(scale · x + y) for contiguous `x` and `y` of one shape and dtype (fp16, bf16, fp32).

    Raises ValueError where they differ, are not contiguous, or have another dtype.
    """
    if x.dtype not in DTYPES:
        raise ValueError(f"x must be fp16, bf16 or fp32, got {x.dtype}")
    out = torch.empty_like(x) if out is None else out
    for name, tensor in {"x": x, "y": y, "out": out}.items():
        if tensor.shape != x.shape or tensor.dtype != x.dtype:
            raise ValueError(
                f"{name} must be like x, {tuple(x.shape)} {x.dtype}, "
                f"got {tuple(tensor.shape)} {tensor.dtype}"
            )
        if not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous, got strides {tensor.stride()}: call .contiguous()"
            )
    backend.same_device(x=x, y=y, out=out)
    if n := x.numel():
        grid = (triton.cdiv(n, BLOCK),)
        elementwise_chain_kernel[grid](x, y, out, float(scale), n, BLOCK=BLOCK, num_warps=8)
    return out

"""Matrix product: the kernel that reuses what it reads, hence the ceiling of arithmetic."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernelbook import backend
from kernelbook.work import Work

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
GROUP = 8  # rows of tiles that run side by side, see the kernel


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """out[m, n] = sum over k of a[m, k] · b[k, n]."""
    return a @ b


def work(m: int, n: int, k: int, dtype: torch.dtype) -> Work:
    """2 m n k FLOPs; a [m, k] and b [k, n] read once, out [m, n] written once."""
    return Work(2 * m * n * k, (m * k + k * n) * dtype.itemsize, m * n * dtype.itemsize)


class Config(NamedTuple):
    """Tile of the output [block_m, block_n], slice of the inner dimension, and how it is run."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def config(m: int, n: int, dtype: torch.dtype, device=None) -> Config:
    """The tile for a shape: as large as shared memory allows, no larger than the matrix needs."""
    capability = backend.capability(device)
    if dtype == torch.float32 or capability < (8, 0):
        best = Config(64, 64, 32, 4, 2)  # no tensor cores: registers limit, not shared memory
    elif capability[0] in (9, 10):
        best = Config(128, 256, 64, 8, 3)  # 144 KiB of shared memory
    else:
        best = Config(128, 128, 32, 8, 3)  # 48 KiB: fits the 99 KiB of sm_86, sm_89 and sm_120
    small_m = max(16, min(best.block_m, triton.next_power_of_2(m)))
    small_n = max(16, min(best.block_n, triton.next_power_of_2(n)))
    return best._replace(block_m=small_m, block_n=small_n)


@triton.jit
def matmul_kernel(
    a,
    b,
    out,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_om,
    stride_on,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program computes one tile of out; sums are kept in fp32."""
    # Programs that run at the same time share rows of a and columns of b: walk the tiles in
    # bands of GROUP rows, so that what one program reads another finds in L2.
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band = tl.program_id(0) // (GROUP * tiles_n)
    within = tl.program_id(0) % (GROUP * tiles_n)
    band_rows = tl.minimum(tiles_m - band * GROUP, GROUP)
    m = (band * GROUP + within % band_rows).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (within // band_rows).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_tile = a + m[:, None] * stride_am + k[None, :] * stride_ak  # [BLOCK_M, BLOCK_K]
    b_tile = b + k[:, None] * stride_bk + n[None, :] * stride_bn  # [BLOCK_K, BLOCK_N]
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = k < K - start
        a_block = tl.load(a_tile, mask=(m < M)[:, None] & inside[None, :], other=0.0)
        b_block = tl.load(b_tile, mask=inside[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(a_block, b_block, acc, input_precision=PRECISION)
        a_tile += BLOCK_K * stride_ak
        b_tile += BLOCK_K * stride_bk
    to = out + m[:, None] * stride_om + n[None, :] * stride_on
    tl.store(to, acc.to(out.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """a [M, K] @ b [K, N], fp16, bf16 or fp32, any strides; fp32 sums (and no tf32).

    Raises ValueError for other ranks, inner dimensions that differ, or mixed dtypes.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"a must be [M, K] and b [K, N], got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if a.dtype not in DTYPES or a.dtype != b.dtype:
        raise ValueError(
            f"a and b must both be fp16, bf16 or fp32, got a {a.dtype} and b {b.dtype}"
        )
    (m, k), n = a.shape, b.shape[1]
    out = a.new_empty(m, n) if out is None else out
    if out.shape != (m, n) or out.dtype != a.dtype or 0 in out.stride():
        raise ValueError(
            f"out must be ({m}, {n}) {a.dtype}, each element with a place of its own, "
            f"got {tuple(out.shape)} {out.dtype}, strides {out.stride()}"
        )
    backend.same_device(a=a, b=b, out=out)
    if out.numel():
        tile = config(m, n, a.dtype, a.device)
        grid = (triton.cdiv(m, tile.block_m) * triton.cdiv(n, tile.block_n),)
        matmul_kernel[grid](
            a,
            b,
            out,
            m,
            n,
            k,
            *a.stride(),
            *b.stride(),
            *out.stride(),
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            BLOCK_K=tile.block_k,
            GROUP=GROUP,
            PRECISION="ieee",
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    return out

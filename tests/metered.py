"""Kernels and callables that several tests of the meter count."""

import math
from dataclasses import asdict

import torch
import triton
import triton.language as tl

from kernelbook import meter


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n)
    tl.store(out + i, total, mask=i < n)


def add(x, y):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
    return out


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row, i = tl.program_id(0) * columns, tl.arange(0, BLOCK)
    a = tl.load(x + row + i, mask=i < columns, other=float("-inf"))
    a = tl.exp(a - tl.max(a, 0))
    tl.store(out + row + i, a / tl.sum(a, 0), mask=i < columns)


def softmax(x):
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=128)
    return out


@triton.jit
def matmul_kernel(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    acc = tl.zeros([M, N], tl.float32)
    for start in range(0, k, K):
        inner = start + tl.arange(0, K)
        left = (rows[:, None] < m) & (inner[None, :] < k)
        right = (inner[:, None] < k) & (columns[None, :] < n)
        acc = tl.dot(
            tl.load(a + rows[:, None] * k + inner[None, :], mask=left, other=0.0),
            tl.load(b + inner[:, None] * n + columns[None, :], mask=right, other=0.0),
            acc,
        )
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], acc, mask=inside)


def matmul(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype)
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
    matmul_kernel[grid](a, b, c, m, n, k, M=32, N=32, K=16)
    return c


def one_kernel(counts):
    (kernel,) = counts.kernels
    return asdict(kernel)


def operations(fn, *args):
    return [
        (operation.name, operation.read, operation.written, operation.flops)
        for operation in meter.count(fn, *args).operations
    ]


def naive_attention(q, k, v):
    scores = q @ k.transpose(-1, -2)
    return torch.softmax(scores * q.shape[-1] ** -0.5, dim=-1) @ v


def put(x):
    x[x > 0] = torch.ones(int((x > 0).sum()))


def mixed(x, y):
    z = add(x, y) * 2
    z = softmax(z.view(10, 100))
    if z.isnan().any():
        raise AssertionError
    return add(z.view(-1), y)


@triton.jit
def attention_kernel(q, k, v, out, n, scale, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    head, d = tl.program_id(1) * n * D, tl.arange(0, D)
    rows = tl.program_id(0) * M + tl.arange(0, M)
    queries = tl.load(q + head + rows[:, None] * D + d[None, :])
    peak, total = tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for start in range(0, n, N):
        columns = head + (start + tl.arange(0, N))[:, None] * D + d[None, :]
        scores = tl.dot(queries, tl.trans(tl.load(k + columns))) * scale
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        rescale = tl.exp2(peak - higher)
        total = total * rescale + tl.sum(weights, 1)
        acc = tl.dot(weights.to(q.dtype.element_ty), tl.load(v + columns), acc * rescale[:, None])
        peak = higher
    tl.store(out + head + rows[:, None] * D + d[None, :], acc / total[:, None])


def tiled_attention(q, k, v):
    heads, n, d = q.shape
    out = torch.empty_like(q)
    scale = d**-0.5 * math.log2(math.e)
    attention_kernel[(n // 64, heads)](q, k, v, out, n, scale, D=d, M=64, N=64)
    return out

"""What interpreted kernels compute: bf16 arithmetic, products, atomics."""

import warnings

import pytest
import torch
import triton
import triton.language as tl
from interpreted import NARROW


@triton.jit
def arithmetic(x, y, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a + b)
    tl.store(out + BLOCK + i, a - b)
    tl.store(out + 2 * BLOCK + i, a * b)
    tl.store(out + 3 * BLOCK + i, tl.maximum(a, b))
    tl.store(out + 4 * BLOCK + i, tl.minimum(a, b))
    tl.store(out + 5 * BLOCK + i, tl.where(a < b, a, b * 3.0))
    tl.store(out + 6 * BLOCK + i, -a)
    tl.store(out + 7 * BLOCK + i, tl.abs(a))
    tl.store(out + 8 * BLOCK + i, (a > b).to(tl.bfloat16))
    tl.store(out + 9 * BLOCK + i, a + tl.full([BLOCK], 1.25, tl.bfloat16))
    tl.store(out + 10 * BLOCK + i, tl.clamp(a, -1.0, 0.5))
    tl.store(out + 11 * BLOCK + i, a.to(tl.int16, bitcast=True).to(tl.bfloat16, bitcast=True))
    tl.store(out + 12 * BLOCK + i, tl.exp(a.to(tl.float32)))
    tl.store(out + 13 * BLOCK + i, (a * 100).to(tl.int32))
    tl.store(out + 14 * BLOCK + i, tl.zeros([BLOCK], tl.bfloat16) + tl.sum(b) + tl.max(a))
    tl.store(out + 15 * BLOCK + i, i.to(tl.bfloat16) + i)


def test_bf16_arithmetic_is_torchs():
    torch.manual_seed(0)
    a, b = torch.randn(1024).bfloat16(), torch.randn(1024).bfloat16()
    out = torch.empty(16, 1024, dtype=torch.bfloat16)
    arithmetic[(1,)](a, b, out, BLOCK=1024)
    i = torch.arange(1024)
    expected = [
        a + b,
        a - b,
        a * b,
        torch.maximum(a, b),
        torch.minimum(a, b),
        torch.where(a < b, a, b * 3.0),
        -a,
        a.abs(),
        (a > b).bfloat16(),
        a + 1.25,
        a.clamp(-1, 0.5),
        a,
        a.float().exp().bfloat16(),
        (a * 100).int().bfloat16(),
        (b.float().sum().bfloat16() + a.max().float()).bfloat16().expand(1024),
        i.bfloat16() + i,
    ]
    for row, want in zip(out, expected, strict=True):
        torch.testing.assert_close(row, want, rtol=0, atol=0)


@triton.jit
def scale_by_float_argument(x, out, factor, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    y = tl.load(x + i) * factor  # a float argument is fp32 on a GPU: so is the product
    tl.static_assert(y.dtype == tl.float32)
    tl.store(out + i, y)


def test_float_arguments_are_fp32():
    x, out = torch.randn(64).bfloat16(), torch.empty(64)
    scale_by_float_argument[(1,)](x, out, 0.3, BLOCK=64)
    assert torch.equal(out, x.float() * 0.3)


@triton.jit
def matmul(a, b, c, n, k, BLOCK: tl.constexpr):
    rows, cols, inner = tl.arange(0, BLOCK), tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, k, BLOCK):
        left = tl.load(a + rows[:, None] * k + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * n + cols[None, :])
        acc = tl.dot(left, right, acc)
    tl.store(c + rows[:, None] * n + cols[None, :], acc)


@pytest.mark.parametrize("dtype", [torch.float16, *NARROW], ids=str)
def test_dot_accumulates_in_fp32(dtype):
    torch.manual_seed(0)
    a, b = torch.randn(64, 256).to(dtype), torch.randn(256, 64).to(dtype)
    c = torch.empty(64, 64)
    matmul[(1,)](a, b, c, 64, 256, BLOCK=64)
    error = (c - a.double() @ b.double()).norm() / (a.double() @ b.double()).norm()
    assert error < 1e-6


@triton.jit
def fp32_product(a, b, c, PRECISION: tl.constexpr):
    i = tl.arange(0, 64)
    tile = i[:, None] * 64 + i[None, :]
    product = tl.dot(tl.load(a + tile), tl.load(b + tile), input_precision=PRECISION)
    tl.store(c + tile, product)


def test_fp32_dot_is_tf32_unless_told_otherwise():
    torch.manual_seed(0)
    a, b, c = torch.randn(64, 64), torch.randn(64, 64), torch.empty(64, 64)
    want = a.double() @ b.double()
    errors = {}
    for precision in (None, "tf32", "tf32x3", "ieee"):
        fp32_product[(1,)](a, b, c, PRECISION=precision)
        errors[precision] = float((c - want).norm() / want.norm())
    assert 2e-4 < errors[None] == errors["tf32"] < 4e-4
    assert errors["ieee"] < 1e-6 and errors["tf32x3"] < 1e-6


def test_int8_dot_is_exact():
    a = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    b = torch.randint(-128, 128, (64, 32), dtype=torch.int8)

    @triton.jit
    def kernel(a, b, c):
        m, k = tl.arange(0, 32), tl.arange(0, 64)
        left = tl.load(a + m[:, None] * 64 + k[None, :])
        right = tl.load(b + k[:, None] * 32 + m[None, :])
        tl.store(c + m[:, None] * 32 + m[None, :], tl.dot(left, right, out_dtype=tl.int32))

    c = torch.empty(32, 32, dtype=torch.int32)
    kernel[(1,)](a, b, c)
    assert torch.equal(c, a.int() @ b.int())


@triton.jit
def scores_to_weights(scores, peak):
    return tl.exp2((scores - peak) * 1.44269504)


@triton.jit
def attention(q, k, v, out, n, scale, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    head, d = tl.program_id(1) * n * D, tl.arange(0, D)
    rows = tl.program_id(0) * M + tl.arange(0, M)
    queries = tl.load(q + head + rows[:, None] * D + d[None, :])
    peak, total = tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for start in range(0, n, N):
        columns = start + tl.arange(0, N)
        keys = tl.load(k + head + columns[:, None] * D + d[None, :])
        scores = tl.dot(queries, tl.trans(keys)) * scale
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = scores_to_weights(scores, higher[:, None])
        rescale = scores_to_weights(peak, higher)
        total = total * rescale + tl.sum(weights, 1)
        values = tl.load(v + head + columns[:, None] * D + d[None, :])
        acc = tl.dot(weights.to(values.dtype), values, acc * rescale[:, None])
        peak = higher
    tl.store(out + head + rows[:, None] * D + d[None, :], acc / total[:, None])


def test_tiled_attention_in_bf16():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 256, 64).bfloat16() for _ in range(3))
    out = torch.empty_like(q)
    attention[(4, 2)](q, k, v, out, 256, 0.125, D=64, M=64, N=64)
    q, k, v = q.double(), k.double(), v.double()
    want = (q @ k.mT / 8).softmax(-1) @ v
    assert (out - want).norm() / want.norm() < 3e-3


@triton.jit
def count_up(cells, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    before = tl.atomic_add(cells + i % 4, tl.full([BLOCK], 1.0, cells.dtype.element_ty), i < n)
    tl.store(out + i, before, mask=i < n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_atomics(dtype):
    cells, before = torch.zeros(4, dtype=dtype), torch.zeros(16, dtype=dtype)
    count_up[(2,)](cells, before, 10, BLOCK=16)
    assert cells.tolist() == [6, 6, 4, 4]
    assert before[:10].tolist() == [3, 3, 2, 2, 4, 4, 3, 3, 5, 5]


@triton.jit
def numbers_without_noise(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    tl.store(out + i, tl.exp(a * 1000.0) / (a - a) + tl.max(a / a))


def test_overflow_and_nan_are_silent(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers_without_noise[(1,)](torch.zeros(16), torch.zeros(16), BLOCK=16)
    assert capfd.readouterr().err == ""

"""tl.fma rounds once, as a GPU does, in every float type."""

from fractions import Fraction

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def fused(x, y, z, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


def cancelling(dtype, n=1024):
    """x, y, z with z near -x y, where a product rounded by itself shows most, and other z."""
    x, y = torch.randn(n, dtype=torch.float64).to(dtype), torch.randn(n).to(dtype)
    z = (-x.double() * y.double()).to(dtype)
    scales = 2.0 ** torch.randint(-8, 9, (n,))
    return x, y, torch.where(torch.arange(n) % 3 == 0, z, (z.double() * scales).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_fma_is_the_exact_value_rounded_once(dtype):
    torch.manual_seed(0)
    x, y, z = cancelling(dtype)
    out = torch.empty_like(x)
    fused[(1,)](x, y, z, out, BLOCK=1024)
    up, down = (out.nextafter(torch.tensor(s * torch.inf, dtype=dtype)) for s in (1, -1))
    columns = [t.double().tolist() for t in (x, y, z, out, up, down)]
    for a, b, c, *found in zip(*columns, strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        distance, *others = (abs(Fraction(value) - exact) for value in found)
        assert distance <= min(others)
    assert not torch.equal(out, x * y + z), "inputs on which two roundings give the same"


def test_fma_of_bf16_keeps_what_fp32_would_lose():
    """7/4 · 37/32 lies halfway between two bf16 numbers: 2^-40 less, and it rounds down."""
    x, y, z = (torch.full((16,), value).bfloat16() for value in (7 / 4, 37 / 32, -(2.0**-40)))
    out = torch.empty_like(x)
    fused[(1,)](x, y, z, out, BLOCK=16)
    assert (out == 129 / 64).all()
    fused[(1,)](x, y, -z, out, BLOCK=16)
    assert (out == 130 / 64).all()


def test_fma_of_infinities_nan_and_whole_numbers():
    inf, nan = torch.inf, torch.nan
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = torch.tensor([inf, nan, 1, inf, -0.0, 3e38, 1, 0], dtype=dtype)
        y = torch.tensor([2, 1, inf, 0, 1, 3e38, nan, 1], dtype=dtype)
        z = torch.tensor([1, 1, -inf, 1, -0.0, 0, 1, 0], dtype=dtype)
        out = torch.empty_like(x)
        fused[(1,)](x, y, z, out, BLOCK=8)
        torch.testing.assert_close(out, x * y + z, rtol=0, atol=0, equal_nan=True)
    x = torch.arange(16, dtype=torch.int32)
    out = torch.empty_like(x)
    fused[(1,)](x, x + 1, x + 2, out, BLOCK=16)
    assert torch.equal(out, x * (x + 1) + x + 2)

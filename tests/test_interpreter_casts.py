"""bf16 and fp8 in the interpreter: every code, every rounding, against torch's."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from interpreted import NARROW

BLOCK = 1024


@triton.jit
def cast(source, target, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + i, mask=i < n)
    tl.store(target + i, x.to(target.dtype.element_ty), mask=i < n)


@triton.jit
def cast_toward_zero(source, target, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(source + i, mask=i < n)
    y = x.to(target.dtype.element_ty, fp_downcast_rounding="rtz")
    tl.store(target + i, y, mask=i < n)


def run_cast(values, dtype, kernel=cast):
    out = torch.empty(values.shape, dtype=dtype)
    grid = (triton.cdiv(values.numel(), BLOCK),)
    kernel[grid](values, out, values.numel(), BLOCK=max(BLOCK, values.numel() // grid[0]))
    return out


def same(a, b):
    """Equal values, NaN where NaN, and the same zeros."""
    a, b = a.double(), b.double()
    equal = (a == b) & (torch.signbit(a) == torch.signbit(b))
    return bool((equal | (a.isnan() & b.isnan())).all())


def expected_cast(values, dtype):
    """torch's conversion; fp8 saturates, as a GPU's does and torch's does not."""
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        largest = torch.finfo(dtype).max
        values = values.float().clamp(-largest, largest)
    return values.to(dtype)


def all_codes(dtype):
    bits = dtype.itemsize * 8
    codes = torch.arange(-(2 ** (bits - 1)), 2 ** (bits - 1))
    return codes.to(torch.int16 if bits == 16 else torch.int8).view(dtype)


def awkward_values(dtype):
    """Halves between neighbors and beside them, overflow, subnormals, inf, NaN, random bits."""
    finite = all_codes(dtype).double()
    finite = finite[finite.isfinite()].unique()
    halves = ((finite[1:] + finite[:-1]) / 2).float()
    up, down = torch.tensor(torch.inf), torch.tensor(-torch.inf)
    random = torch.from_numpy(np.random.default_rng(0).integers(0, 2**32, 30000, dtype=np.uint32))
    edges = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 500, -500, 6e4, 7e4, 3.4e38])
    parts = [halves, halves.nextafter(up), halves.nextafter(down), edges]
    return torch.cat([*parts, random.view(torch.float32)])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_code_widens_and_copies_exactly(dtype):
    codes = all_codes(dtype)
    assert same(run_cast(codes, torch.float32), codes.float())
    as_integer = torch.int16 if dtype.itemsize == 2 else torch.int8
    assert torch.equal(run_cast(codes, dtype).view(as_integer), codes.view(as_integer))
    if dtype.itemsize == 1:
        assert same(run_cast(codes, torch.bfloat16), codes.float().bfloat16())
        assert same(run_cast(codes, torch.float16), codes.float().half())


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_casts_round_to_nearest_even(dtype):
    values = awkward_values(dtype)
    assert same(run_cast(values, dtype), expected_cast(values, dtype))


@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", NARROW[1:], ids=str)
def test_sixteen_bits_to_fp8(source, dtype):
    values = all_codes(source)
    assert same(run_cast(values, dtype), expected_cast(values, dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_cast_toward_zero(dtype):
    values = torch.randn(1000) * 100
    out = run_cast(values, dtype, cast_toward_zero).float()
    nearest = values.to(dtype).float()
    assert (out.abs() <= values.abs()).all()
    assert (out != nearest).any() and torch.equal(out[out == nearest], nearest[out == nearest])


@given(st.lists(st.floats(width=32), min_size=1, max_size=64))
def test_bf16_of_any_float(values):
    values = torch.tensor(values)
    assert same(run_cast(values, torch.bfloat16), values.bfloat16())

"""What the interpreter computes, a GPU computes too: bit by bit for casts, closely for products."""

import pytest
import test_interpreter_arithmetic as arithmetic
import test_interpreter_casts as casts
import torch
from interpreted import NARROW

from kernelbook import backend, checks, meter

pytestmark = pytest.mark.skipif(
    not backend.GPU, reason="no GPU: the interpreter was not compared with one"
)
WIDE = [torch.float32, torch.float16, torch.bfloat16]


def on_gpu(values, dtype, kernel=casts.cast):
    out = torch.empty(values.shape, dtype=dtype, device="cuda")
    kernel[(-(-values.numel() // 1024),)](values.cuda(), out, values.numel(), BLOCK=1024)
    return out.cpu()


@pytest.mark.parametrize("source", WIDE, ids=str)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_casts_to_narrow_types(source, dtype):
    values = casts.awkward_values(dtype).to(source)
    if source != dtype:
        assert casts.same(casts.run_cast(values, dtype), on_gpu(values, dtype))


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("source", NARROW, ids=str)
def test_every_narrow_code_widens(source, dtype):
    codes = casts.all_codes(source)
    if (source, dtype) == (torch.float8_e5m2, torch.bfloat16):  # Triton 3.6 widens inf and NaN
        codes = codes[codes.float().isfinite()]  # to numbers there: the interpreter keeps them
    assert casts.same(casts.run_cast(codes, dtype), on_gpu(codes, dtype))


def test_bf16_arithmetic():
    a, b = torch.randn(1024).bfloat16(), torch.randn(1024).bfloat16()
    here = torch.empty(16, 1024, dtype=torch.bfloat16)
    there = torch.empty_like(here, device="cuda")
    arithmetic.arithmetic[(1,)](a, b, here, BLOCK=1024)
    arithmetic.arithmetic[(1,)](a.cuda(), b.cuda(), there, BLOCK=1024)
    # exp and log are approximations on the GPU: one bf16 step where they round differently
    assert checks.relative_error(there.cpu(), here.double()) < 2**-8


@pytest.mark.parametrize("dtype", [torch.float16, *NARROW, torch.float32], ids=str)
def test_products(dtype):
    a, b = torch.randn(64, 256).to(dtype), torch.randn(256, 64).to(dtype)
    here, there = torch.empty(64, 64), torch.empty(64, 64, device="cuda")
    arithmetic.matmul[(1,)](a, b, here, 64, 256, BLOCK=64)
    arithmetic.matmul[(1,)](a.cuda(), b.cuda(), there, 64, 256, BLOCK=64)
    truth = a.double() @ b.double()
    ours, theirs = (checks.relative_error(x.cpu(), truth) for x in (here, there))
    if dtype == torch.float32:  # without "ieee" tf32: rounded here, cut off by Hopper's products
        assert 1e-4 < ours < theirs < 1e-3
    elif dtype.itemsize == 1:  # Hopper sums fp8 products in fewer bits than fp32 has
        assert ours < 1e-6 and theirs < 1e-3
    else:
        assert max(ours, theirs) < 1e-6


def test_the_meter_counts_cuda_tensors_as_it_counts_cpu_tensors():
    from kernelbook.kernels.attention_prefill import attention_prefill

    q, k, v = (torch.randn(1, 2, 130, 64, dtype=torch.float16) for _ in range(3))
    here = meter.count(attention_prefill, q, k, v)
    there = meter.count(attention_prefill, q.cuda(), k.cuda(), v.cuda())
    assert here.table() == there.table()

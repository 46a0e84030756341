"""Codes and scales of keys and values: exactly the reference's, in place, counted, compiled."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelbook import backend, checks, compiled, meter
from kernelbook.kernels import kv_quantize as quantize

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CODES = [torch.int8, torch.float8_e4m3fn]
codes = pytest.mark.parametrize("to", CODES, ids=["int8", "fp8"])


def poisoned(x, to):
    return checks.poisoned_like(x.to(to)), checks.poisoned_like(x[..., 0].float().contiguous())


@given(
    shape=st.tuples(*[st.integers(1, n) for n in (2, 3, 40, 256)]),
    dtype=st.sampled_from(DTYPES),
    to=st.sampled_from(CODES),
    size=st.sampled_from([1e-4, 1.0, 300.0]),
)
def test_codes_and_scales_are_the_references(shape, dtype, to, size):
    x = (torch.randn(shape) * size).to(dtype)
    found = quantize.kv_quantize(x, to, out=poisoned(x, to))
    expected = quantize.reference(x.float(), to)
    assert torch.equal(found[1], expected[1])
    assert torch.equal(found[0].float(), expected[0].float())


@codes
def test_error_is_half_a_step(to):
    x = torch.randn(2, 3, 50, 128)
    values, scale = quantize.kv_quantize(x, to)
    error = (quantize.dequantize(values, scale) - x).abs()
    step = scale[..., None] if to == torch.int8 else (x.abs() / 8).clamp(min=scale[..., None] / 64)
    assert (error <= 0.5001 * step).all()
    assert (values.float().abs().amax(-1) == quantize.LARGEST[to]).all()  # the range is used


@codes
def test_a_token_of_zeros(to):
    values, scale = quantize.kv_quantize(torch.zeros(1, 2, 3, 16), to)
    assert not values.float().any() and (scale == 1).all()


@codes
def test_one_token_into_a_place_of_a_cache(to):
    x = torch.randn(2, 3, 1, 32)
    cache = torch.zeros(2, 10, 3, 32).to(to).transpose(1, 2)  # laid out by tokens
    scales = torch.zeros(2, 3, 10)
    quantize.kv_quantize(x, to, out=(cache[:, :, 4:5], scales[:, :, 4:5]))
    expected = quantize.reference(x, to)
    assert torch.equal(cache[:, :, 4:5].float(), expected[0].float())
    assert torch.equal(scales[:, :, 4:5], expected[1])
    others = [i for i in range(10) if i != 4]
    assert not cache[:, :, others].float().any() and not scales[:, :, others].any()


def test_strides_and_no_tokens():
    x = torch.randn(2, 20, 3, 24).transpose(1, 2)[..., ::2]
    found, expected = quantize.kv_quantize(x), quantize.reference(x)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert quantize.kv_quantize(x[:, :, :0])[1].shape == (2, 3, 0)


x = torch.zeros(1, 2, 3, 16)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: quantize.kv_quantize(x, torch.uint8), "int8 or torch.float8_e4m3fn, got"),
        (lambda: quantize.kv_quantize(x[0]), r"x must be \[B, H, S, D\]"),
        (lambda: quantize.kv_quantize(x.double()), "fp16, bf16 or fp32"),
        (lambda: quantize.kv_quantize(x, out=(x, x[..., 0])), r"out\[0\] must be torch.int8"),
        (
            lambda: quantize.kv_quantize(x, out=(x.to(torch.int8), x[0, ..., 0])),
            r"out\[1\] must be fp32 \(1, 2, 3\)",
        ),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 16), (1, 2, 16, 64), (2, 2, 17, 128), (1, 3, 5, 80), (2, 1, 40, 256)]
)
@codes
def test_meter_equals_work(shape, to):
    counts = meter.count(quantize.kv_quantize, torch.randn(shape).bfloat16(), to)
    work = quantize.work(*shape, torch.bfloat16, to)
    assert (counts.read, counts.written) == (work.read, work.written)
    assert counts.launches == 1 and not counts.operations and counts.flops >= work.flops


@codes
def test_compiles(to):
    call = lambda: quantize.kv_quantize(torch.zeros(1, 2, 40, 128).bfloat16(), to)  # noqa: E731
    reports = compiled.compile_launches(call, targets=[80, 90] if to == torch.int8 else [89, 90])
    assert [(report.refusal, report.spill_bytes) for report in reports] == [(None, 0)] * 2


@pytest.mark.skipif(not backend.GPU, reason="no GPU: the quantizing kernel was not run compiled")
@codes
def test_on_a_gpu(to):
    """Division there may err in the last bit: a code may be its neighbor where x lies between."""
    x = torch.randn(2, 8, 100, 128, device="cuda").bfloat16()
    found, expected = quantize.kv_quantize(x, to), quantize.reference(x.float(), to)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-6, atol=0)
    assert (found[0].float() != expected[0].float()).float().mean() < 1e-3

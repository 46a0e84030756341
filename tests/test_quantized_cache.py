"""KV in 8 bits: codes within their rounding, logits that move a little, faults that are seen."""

from functools import partial

import pytest
import torch
from synthetic_caches import QUANTIZED, SPLIT, filled, made, small

from kernelbook import model
from kernelbook.kernels import kv_quantize

FP8 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def llama():
    return small()


@pytest.mark.parametrize(("to", "error"), [(torch.int8, 0.5 / 127), (FP8, 1 / 16)])
def test_codes_are_the_plain_cache_within_their_rounding(llama, to, error):
    """The first layer's, which no rounding before it has moved."""
    plain = filled(llama.new_cache(2, 13), llama)
    cache = filled(made(QUANTIZED, llama, 2, 13, to=to), llama)
    assert cache.k.dtype == to
    for codes, scale, exact in (
        (cache.k, cache.k_scale, plain.k),
        (cache.v, cache.v_scale, plain.v),
    ):
        found = kv_quantize.dequantize(codes[0], scale[0])
        largest = exact[0].abs().amax(-1, keepdim=True)
        assert ((found - exact[0]).abs() <= largest * error * 1.001).all()
        assert not torch.equal(found, exact[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("to", "most"), [(torch.int8, 0.012), (FP8, 0.04)])
def test_quantized_kv_moves_logits_a_little(dtype, to, most):
    found = model.kv_accuracy(partial(QUANTIZED, to=to), dtype, count=2, length=48, device="cpu")
    assert most / 20 < found.error < most
    assert 0.8 < found.agreement <= 1 and found.tokens == 96


def test_accuracy_of_unquantized_kv_is_rounding():
    assert model.kv_accuracy(SPLIT, count=2, length=32, device="cpu").error < 1e-5


def test_accuracy_sees_what_the_cache_keeps():
    """A fault in what is kept, not in what is attended to while it is read first."""

    def forgets(x, to):
        codes, scale = kv_quantize.reference(x, to)
        return codes, scale * 1.5

    cache = partial(QUANTIZED, quantize=forgets)
    assert model.kv_accuracy(cache, count=2, length=32, device="cpu").error > 0.1

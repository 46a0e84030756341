import pytest
import torch

from kernelbook import checks


def reference(shape=(4, 64, 32), seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    "dtype, text",
    [(torch.float32, "1e-5"), (torch.float16, "2e-3"), (torch.bfloat16, "1e-2")],
)
def test_rounding_passes_at_each_dtype(dtype, text):
    assert checks.check(reference().to(dtype), reference()) == f"ok (tolerance {text})"


@pytest.mark.parametrize("dtype", checks.TOLERANCE)
def test_an_error_just_above_the_tolerance_fails(dtype):
    out = reference() * (1 + 1.5 * checks.TOLERANCE[dtype])
    with pytest.raises(AssertionError, match=r"relative error [13](\.5)?e-"):
        checks.check(out, reference(), tolerance=checks.TOLERANCE[dtype])


def test_relative_error_is_the_ratio_of_norms():
    assert checks.relative_error(reference() * 1.25, reference()) == pytest.approx(0.25)
    assert checks.relative_error(torch.zeros(3), torch.zeros(3, dtype=torch.float64)) == 0
    assert checks.relative_error(torch.ones(3), torch.zeros(3, dtype=torch.float64)) == float("inf")


def test_one_wrong_row_among_many_fails_and_is_named():
    exact = reference((2, 40000, 16))
    out = exact.clone()
    out[1, 39999] = 0
    assert checks.relative_error(out, exact) < 1e-2
    with pytest.raises(AssertionError, match=r"worst in row \[1, 39999\]"):
        checks.check(out, exact, tolerance=1e-2)


def test_a_tiny_row_may_err_by_a_tiny_amount():
    exact = reference()
    exact[0, 0] = 1e-9
    out = exact.clone()
    out[0, 0] = 2e-9
    assert checks.check(out, exact, tolerance=1e-5) == "ok (tolerance 1e-5)"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_finite_never_passes(bad):
    out = reference().float()
    out[3, 63, 31] = bad
    with pytest.raises(AssertionError, match="1 of 8192 elements"):
        checks.check(out, reference(), tolerance=float("inf"))


def test_an_infinity_that_the_reference_has_too_passes():
    exact = reference()
    exact[0, 0, 0] = -float("inf")
    assert checks.check(exact.float(), exact) == "ok (tolerance 1e-5)"
    with pytest.raises(AssertionError, match="1 of 8192"):
        checks.check(exact.float().abs(), exact)
    with pytest.raises(AssertionError, match="relative error"):
        checks.check(exact.float().nan_to_num(neginf=0.0), exact)


def test_anything_against_zeros_fails_with_a_message():
    with pytest.raises(AssertionError, match="relative error inf"):
        checks.check(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.float64))


def test_mismatches_are_clear_errors():
    exact = reference()
    with pytest.raises(ValueError, match=r"shape \[4, 64, 31\], the reference \[4, 64, 32\]"):
        checks.check(exact[..., :31].float(), exact)
    with pytest.raises(ValueError, match=r"compute it in torch.float64"):
        checks.check(exact.float(), exact.float())
    with pytest.raises(ValueError, match=r"torch.float32, it should be torch.float16"):
        checks.check(exact.float(), exact, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"no tolerance is set for torch.int64"):
        checks.check(exact.long(), exact)
    with pytest.raises(ValueError, match="two tensors"):
        checks.check(1.0, exact)


def test_reference64_doubles_floats_only():
    def total(x, index, scale=1):
        assert (x.dtype, index.dtype) == (torch.float64, torch.int64)
        return x[index] * scale

    assert checks.reference64(total, torch.ones(3), torch.tensor([1]), scale=2).item() == 2


DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.uint8])
def test_poison_shows_until_written(dtype):
    out = checks.poisoned_like(torch.zeros(4, 3).to(dtype))
    assert not checks.every_element_written(out)
    out[:3] = torch.ones(3, 3).to(dtype)
    assert not checks.every_element_written(out)
    out[3:] = torch.ones(1, 3).to(dtype)
    assert checks.every_element_written(out)


def test_poisoned_memory_reveals_a_forgotten_row():
    def forgetful(x):
        out = torch.empty_like(x)
        out[:-1] = x[:-1]
        return out

    with checks.poisoned_memory():
        out = forgetful(torch.ones(4, 2))
        assert torch.empty(3).isnan().all() and torch.ones(2).new_empty(2).isnan().all()
    assert not checks.every_element_written(out)
    with pytest.raises(AssertionError, match="2 of 8 elements are NaN"):
        checks.check(out, torch.ones(4, 2, dtype=torch.float64))


def test_tolerances_print_short():
    assert [checks.power_of_ten(x) for x in (2e-3, 1e-2, 1.5e-5, 3.0)] == [
        "2e-3",
        "1e-2",
        "1.5e-5",
        "3e0",
    ]

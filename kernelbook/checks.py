"""Is the answer right? Errors against a float64 reference, and memory poisoned beforehand.

    error = ||out - reference|| / ||reference||        in float64, over all elements

One number over a whole tensor can hide one wrong row among thousands, so `check` looks at
the worst row (last dimension) too.
"""

import math
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode

# About five times what a correct attention or norm kernel shows at these precisions.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}

# A row may err this many times the tolerance of the whole: rounding varies between rows.
ROW_FACTOR = 4


def reference64(fn, *args, **kwargs):
    """fn on float64 copies of its floating-point tensors: the reference to compare with."""

    def double(value):
        return value.double() if torch.is_tensor(value) and value.is_floating_point() else value

    return fn(*map(double, args), **{name: double(value) for name, value in kwargs.items()})


def _compared(out, reference) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in float64 on the CPU, or ValueError saying what does not fit."""
    if not (torch.is_tensor(out) and torch.is_tensor(reference)):
        kinds = f"{type(out).__name__} and {type(reference).__name__}"
        raise ValueError(f"compare takes two tensors, got {kinds}")
    if out.shape != reference.shape:
        raise ValueError(
            f"the output has shape {list(out.shape)}, the reference {list(reference.shape)}"
        )
    if reference.dtype != torch.float64:
        raise ValueError(
            f"the reference is {reference.dtype}, which has rounding errors of its own: compute "
            "it in torch.float64 (checks.reference64 does)"
        )
    out, reference = out.detach().cpu().double(), reference.detach().cpu()
    agree = reference.isinf() & (out == reference)  # the log-sum-exp of a row without keys, say
    return out.masked_fill(agree, 0), reference.masked_fill(agree, 0)


def _ratio(difference: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """difference / scale, where 0 / 0 is no error."""
    return torch.where(difference == 0, torch.zeros_like(difference), difference / scale)


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """||out - reference|| / ||reference|| in float64; NaN where the output holds a NaN.

    Raises ValueError where shapes differ or the reference is not float64.
    """
    out, reference = _compared(out, reference)
    return _ratio((out - reference).norm(), reference.norm()).item()


def worst_row(out: torch.Tensor, reference: torch.Tensor) -> tuple[float, tuple[int, ...]]:
    """The largest error of a row (last dimension) and the row's index.

    A row's error is divided by its own norm, or by the root mean square of all rows' norms
    where that is larger: a row of almost nothing may err by almost nothing.
    """
    out, reference = _compared(out, reference)
    if reference.numel() == 0 or reference.ndim == 0:
        return relative_error(out, reference), ()
    norms = reference.norm(dim=-1)
    errors = _ratio((out - reference).norm(dim=-1), norms.clamp(min=norms.square().mean().sqrt()))
    flat = errors.flatten()
    worst = int(flat.nan_to_num(nan=torch.inf).argmax())
    index = torch.unravel_index(torch.tensor(worst), errors.shape)
    return flat[worst].item(), tuple(int(i) for i in index)


def power_of_ten(value: float) -> str:
    """0.002 -> "2e-3": short, and without the padded exponent that Python prints."""
    if not math.isfinite(value):
        return str(value)
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def _tolerance_for(dtype: torch.dtype) -> float:
    if dtype not in TOLERANCE:
        known = ", ".join(str(known) for known in TOLERANCE)
        raise ValueError(f"no tolerance is set for {dtype} (there is for {known}): pass one")
    return TOLERANCE[dtype]


def check(
    out: torch.Tensor,
    reference: torch.Tensor,
    tolerance: float | None = None,
    dtype: torch.dtype | None = None,
) -> str:
    """ "ok (tolerance 2e-3)", or AssertionError with the numbers.

    out        what a kernel returned.
    reference  the same in float64.
    tolerance  default: TOLERANCE of the output's dtype.
    dtype      the dtype that the output must have, if given.
    Raises ValueError where shapes or dtypes do not fit, AssertionError where values do not.
    A NaN or an infinity that the reference does not have never passes.
    """
    if dtype is not None and torch.is_tensor(out) and out.dtype != dtype:
        raise ValueError(f"the output is {out.dtype}, it should be {dtype}")
    finite = _compared(out, reference)[0].isfinite()
    tolerance = _tolerance_for(out.dtype) if tolerance is None else tolerance
    not_finite = int((~finite).sum())
    if not_finite:
        raise AssertionError(
            f"{not_finite} of {out.numel()} elements are NaN or infinite: never written, a masked "
            "load without other=, a row without any key, or an overflow?"
        )
    error = relative_error(out, reference)
    row_error, row = worst_row(out, reference)
    if not error <= tolerance or not row_error <= ROW_FACTOR * tolerance:
        where = f", worst in row {list(row)} ({power_of_ten(row_error)})" if row else ""
        raise AssertionError(
            f"relative error {power_of_ten(error)}, tolerance {power_of_ten(tolerance)}{where}"
        )
    return f"ok (tolerance {power_of_ten(tolerance)})"


# --- poisoned memory -----------------------------------------------------------------------


def _poison_(tensor: torch.Tensor) -> torch.Tensor:
    """Fill with a value no kernel writes: NaN, or an integer's smallest value."""
    if tensor.dtype == torch.bool:
        return tensor.fill_(True)
    if not tensor.dtype.is_floating_point:
        return tensor.fill_(torch.iinfo(tensor.dtype).min if tensor.dtype.is_signed else 0xDE)
    if tensor.element_size() == 1:
        tensor.view(torch.uint8).fill_(0x7F)  # NaN in e4m3 and in e5m2; fill_ lacks fp8 kernels
        return tensor
    return tensor.fill_(float("nan"))


def poisoned_like(tensor: torch.Tensor) -> torch.Tensor:
    """An output buffer like `tensor` in which every element is NaN (or an integer's minimum)."""
    return _poison_(torch.empty_like(tensor))


def every_element_written(out: torch.Tensor) -> bool:
    """Is no poison left? (True for a bool tensor would mean nothing: ValueError.)"""
    if out.dtype == torch.bool:
        raise ValueError("a bool has no value to spare for poison: check an output of numbers")
    if out.dtype.is_floating_point:
        return not out.float().isnan().any().item()
    return not (out == _poison_(out.new_empty(1))).any().item()


class _PoisonedAllocations(TorchFunctionMode):
    ALLOCATORS = (
        torch.empty,
        torch.empty_like,
        torch.empty_strided,
        torch.Tensor.new_empty,
        torch.Tensor.new_empty_strided,
    )

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return _poison_(result) if func in self.ALLOCATORS else result


@contextmanager
def poisoned_memory():
    """Within it, what `torch.empty` and its relatives return holds NaN, not leftovers.

    A launcher that forgets to write a part of its output then returns NaN there, instead of
    an old right answer that happens to lie in the reused memory.
    """
    with _PoisonedAllocations():
        yield

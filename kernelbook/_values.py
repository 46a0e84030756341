"""How the interpreter holds values: as numpy arrays, bf16 and fp8 as rounded fp32."""

import numpy as np
from triton.runtime import interpreter as insides

from kernelbook._lowfloat import FORMATS, encode, round_to

_np_dtype = insides._get_np_dtype
_np_dtypes = {name: np.dtype(np.float32) for name in FORMATS}
POINTER = np.dtype(np.uint64)
_fits = insides._validate_np_data_size


def format_of(dtype):
    """The narrow float format of a Triton type, or None. Pointers have none."""
    return FORMATS.get(dtype.scalar.name)


def numpy_dtype(dtype) -> np.dtype:
    """The numpy dtype values of a Triton type are held in: fp32 for bf16 and fp8."""
    scalar = dtype.scalar
    if scalar.is_ptr():
        return POINTER
    if scalar.name not in _np_dtypes:
        _np_dtypes[scalar.name] = _np_dtype(scalar)
    return _np_dtypes[scalar.name]


def fits(array, dtype) -> bool:
    return array.itemsize <= 4 if format_of(dtype) else _fits(array, dtype)


def convert(array: np.ndarray, dtype, toward_zero: bool = False) -> np.ndarray:
    """Values as `dtype` holds them, rounded where it is narrow."""
    form = format_of(dtype)
    if form:
        return round_to(form, array, toward_zero)
    with np.errstate(all="ignore"):
        return array.astype(numpy_dtype(dtype), copy=False)


def code_dtype(element) -> np.dtype:
    """The numpy dtype that values of a Triton type have in memory."""
    form = format_of(element)
    return form.code_dtype if form else numpy_dtype(element)


def codes(element, values: np.ndarray) -> np.ndarray:
    """Values as they lie in memory."""
    form = format_of(element)
    return encode(form, values) if form else values

"""Numbers narrower than numpy knows: bf16 and the two fp8 formats, held as fp32 values.

An array of such a type holds fp32 values that are all representable in the narrow type. Arithmetic
happens in fp32 and is rounded (to nearest, ties to even), as a GPU does it. Memory holds codes.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Format:
    """Bits of a code are sign, exponent, `mantissa` bits. `largest` is the largest finite value.

    A conversion to fp8 saturates, infinities too: PTX `cvt.rn.satfinite`. bf16 overflows to inf.
    """

    name: str
    bits: int
    mantissa: int
    smallest_exponent: int  # of a normal number
    largest: float
    saturates: bool

    @property
    def code_dtype(self) -> np.dtype:
        return np.dtype(f"uint{self.bits}")


FORMATS = {
    "bf16": Format("bf16", 16, 7, -126, float(2.0**127 * (2 - 2.0**-7)), saturates=False),
    "fp8e4nv": Format("fp8e4nv", 8, 3, -6, 448.0, saturates=True),
    "fp8e5": Format("fp8e5", 8, 2, -14, 57344.0, saturates=True),
}


def _fp8_value(form: Format, code: int) -> float:
    sign = -1.0 if code & 0x80 else 1.0
    exponent, fraction = (code & 0x7F) >> form.mantissa, code & ((1 << form.mantissa) - 1)
    if form.name == "fp8e4nv" and code & 0x7F == 0x7F:
        return float("nan")
    if form.name == "fp8e5" and exponent == 31:
        return float("nan") if fraction else sign * float("inf")
    if exponent == 0:
        return sign * fraction * 2.0 ** (form.smallest_exponent - form.mantissa)
    scale = 2.0 ** (exponent - 1 + form.smallest_exponent - form.mantissa)
    return sign * ((1 << form.mantissa) + fraction) * scale


def _table(form: Format) -> np.ndarray:
    """Value of each of the 256 codes; a NaN keeps sign and payload, so that a copy is exact."""
    values = np.array([_fp8_value(form, code) for code in range(256)], np.float32)
    codes = np.arange(256, dtype=np.uint32)
    fraction = codes & ((1 << form.mantissa) - 1)
    nan_bits = (codes >> 7 << 31) | 0x7F800000 | (fraction << (23 - form.mantissa))
    bits = np.where(np.isnan(values), nan_bits, values.view(np.uint32))
    return bits.astype(np.uint32).view(np.float32)


TABLES = {name: _table(form) for name, form in FORMATS.items() if form.bits == 8}


def decode(form: Format, codes: np.ndarray) -> np.ndarray:
    """Codes as they lie in memory -> fp32 values."""
    if form.bits == 8:
        return TABLES[form.name][codes]
    return (codes.astype(np.uint32) << 16).view(np.float32)


def encode(form: Format, values: np.ndarray) -> np.ndarray:
    """Representable fp32 values -> codes. Exact, NaN payloads too."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    if form.bits == 16:
        return (bits >> 16).astype(np.uint16)
    positive = TABLES[form.name][:128]
    finite = np.isfinite(positive)
    codes = np.searchsorted(positive[finite], np.abs(values)).astype(np.uint32)
    fraction = (bits >> (23 - form.mantissa)) & ((1 << form.mantissa) - 1)
    special = 0x7F if form.name == "fp8e4nv" else 0x7C | fraction  # e4nv has one NaN, no infinity
    codes = np.where(np.isfinite(values), codes, special) | (bits >> 31 << 7)
    return codes.astype(np.uint8)


def round_to(form: Format, values: np.ndarray, toward_zero: bool = False) -> np.ndarray:
    """fp32 (or wider) values -> the nearest representable ones, as fp32; ties to even."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if form.bits == 16:
        return _round_bf16(values, toward_zero)
    magnitude = np.abs(values)
    with np.errstate(invalid="ignore", over="ignore"):
        _, exponent = np.frexp(magnitude)  # magnitude = fraction in [0.5, 1) × 2^exponent
        step = np.ldexp(1.0, np.maximum(exponent - 1, form.smallest_exponent) - form.mantissa)
        steps = magnitude.astype(np.float64) / step
        rounded = (np.trunc(steps) if toward_zero else np.rint(steps)) * step
        rounded = np.copysign(np.minimum(rounded, form.largest), values)
    nan = np.copysign(TABLES[form.name][0x7F], values)
    return np.where(np.isnan(values), nan, rounded).astype(np.float32)


def _round_bf16(values: np.ndarray, toward_zero: bool) -> np.ndarray:
    bits = values.view(np.uint32)
    up = np.uint32(0) if toward_zero else np.uint32(0x7FFF) + ((bits >> 16) & 1)
    rounded = ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)
    nan = np.isnan(values)
    if nan.any():  # the carry would turn a NaN into a number; a GPU writes 0x7FFF
        rounded = np.where(nan, np.uint32(0x7FFF0000).view(np.float32), rounded)
    return rounded

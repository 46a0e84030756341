"""x · y + z rounded once, as a GPU's fma does; numpy only has the two roundings of x * y + z.

Rounding to odd: an inexact sum takes the neighbor whose last bit is 1. Rounding that once more, to
a type at least two bits narrower, gives what rounding the exact sum would have given.
S. Boldo, G. Melquiond, Emulation of FMA and correctly rounded sums, 2008.
"""

import numpy as np


def _two_sum(a, b):
    """a + b as nearest float64 and what it lacks, exactly."""
    nearest = a + b
    part = nearest - a
    return nearest, (a - (nearest - part)) + (b - part)


def _to_odd(value, rest):
    """`value`, of which `rest` is missing, rounded to odd instead of to nearest."""
    bits = value.view(f"u{value.itemsize}")
    even = (rest != 0) & np.isfinite(value) & (bits & np.array(1, bits.dtype) == 0)
    toward = np.copysign(np.array(np.inf, value.dtype), rest.astype(value.dtype))
    return np.where(even, np.nextafter(value, toward), value)


def _two_product(a, b):
    """a · b as nearest float64 and what it lacks: each factor in two halves of 26 bits."""

    def halves(x):
        large = x * 134217729.0  # 2^27 + 1
        high = large - (large - x)
        return high, x - high

    (a_high, a_low), (b_high, b_low) = halves(a), halves(b)
    product = a * b
    rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, rest


def _fused_double(x, y, z):
    product, product_rest = _two_product(x, y)
    low, low_rest = _two_sum(z, product_rest)
    high, high_rest = _two_sum(product, low)
    result = high + _to_odd(*_two_sum(low_rest, high_rest))
    plain = x * y + z  # where halves overflow, or infinities and NaN come in
    return np.where(np.isfinite(result), result, plain)


def fused(x: np.ndarray, y: np.ndarray, z: np.ndarray, odd: bool = False) -> np.ndarray:
    """x · y + z in z's numpy type, rounded once; `odd`: as float32 that is to be rounded again."""
    if z.dtype == np.float64:
        return _fused_double(x, y, z)
    x, y, z, narrow = *(v.astype(np.float64) for v in (x, y, z)), z.dtype
    exact = _to_odd(*_two_sum(x * y, z))  # the product of two float32 is exact in float64
    rounded = exact.astype(narrow)
    return _to_odd(rounded, exact - rounded) if odd else rounded

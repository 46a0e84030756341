"""What Triton's interpreter computes for an operation, made right: bf16, fp8, tf32, NaN.

Each function here replaces the method of the same name of Triton's `InterpreterBuilder`, whose
signatures differ between Triton versions, hence the `*_` for arguments that change nothing here.
"""

import dataclasses

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter as insides
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from kernelbook import _builder_memory as memory
from kernelbook._access import Running, computed, multiplied
from kernelbook._fma import fused
from kernelbook._lowfloat import FORMATS, decode
from kernelbook._values import codes, convert, fits, format_of, numpy_dtype

_original = {name: getattr(InterpreterBuilder, name) for name in dir(InterpreterBuilder)}


# --- casts


def cast_impl(self, source, dtype):
    return TensorHandle(convert(source.data, dtype), dtype.scalar)


def create_fp_to_fp(self, source, dtype, rounding_mode):
    toward_zero = rounding_mode == ir.ROUNDING_MODE.RTZ
    if toward_zero and dtype.scalar.is_fp16():
        return TensorHandle(_fp16_toward_zero(source.data), dtype.scalar)
    ours = all(t.scalar.name in (*FORMATS, "fp16", "fp32", "fp64") for t in (source.dtype, dtype))
    if not ours:
        return _original["create_fp_to_fp"](self, source, dtype, rounding_mode)
    return TensorHandle(convert(source.data, dtype, toward_zero), dtype.scalar)


def _fp16_toward_zero(values: np.ndarray) -> np.ndarray:
    nearest = values.astype(np.float16)
    away = np.abs(nearest.astype(np.float64)) > np.abs(values)
    return np.where(away, np.nextafter(nearest, np.float16(0)), nearest)


def create_bitcast(self, source, dtype):
    raw = codes(source.dtype, source.data)
    form = format_of(dtype)
    if form:
        return TensorHandle(decode(form, raw.view(form.code_dtype)), dtype.scalar)
    return TensorHandle(raw.view(numpy_dtype(dtype)), dtype.scalar)


# --- arithmetic

MOVES_NOTHING = (np.minimum, np.maximum, np.fmin, np.fmax, np.where, np.clip)  # results are exact


def _finish(operation, output, dtype, counted: bool) -> TensorHandle:
    dtype = dtype.scalar
    if output.dtype == bool:
        return TensorHandle(output, tl.int1)
    if format_of(dtype) and operation not in MOVES_NOTHING:
        output = convert(output, dtype)
    elif not fits(output, dtype):
        output = output.astype(numpy_dtype(dtype))
    if counted and dtype.is_floating():
        computed(output.size, operation.__name__)
    return TensorHandle(output, dtype)


def binary_op(self, lhs, rhs, op):
    return _finish(op, op(lhs.data, rhs.data), lhs.dtype, counted=True)


def ternary_op(self, lhs, rhs, other, op):
    output = op(lhs.data, rhs.data, other.data)
    return _finish(op, output, other.dtype, counted=op is not np.where)


def unary_op(self, arg, op):
    return _finish(op, op(arg.data), arg.dtype, counted=True)


def rsqrt(x):
    return 1 / np.sqrt(x)


def erf(x):
    return insides.np_erf_fp64(x) if x.dtype == np.float64 else insides.np_erf_fp32(x)


def create_fabs(self, arg):
    return unary_op(self, arg, np.abs)


def create_rsqrt(self, arg):
    return unary_op(self, arg, rsqrt)


def create_erf(self, arg):
    return unary_op(self, arg, erf)


def create_fma(self, x, y, z):
    if not z.dtype.scalar.is_floating():
        return _finish(np.add, x.data * y.data + z.data, z.dtype, counted=False)
    computed(z.data.size, "fma")  # and once more below: a multiplication and an addition
    narrow = format_of(z.dtype) is not None
    return _finish(np.add, fused(x.data, y.data, z.data, odd=narrow), z.dtype, counted=True)


def create_minnumf(self, lhs, rhs):
    return binary_op(self, lhs, rhs, np.fmin)  # a GPU returns the operand that is no NaN


def create_maxnumf(self, lhs, rhs):
    return binary_op(self, lhs, rhs, np.fmax)


def get_bf16(self, value):
    return TensorHandle(convert(np.array([value], np.float32), tl.bfloat16), tl.bfloat16)


def create_dot(self, a, b, d, input_precision=None, *_, **__):
    """a @ b + d, accumulated in fp32 (fp64 for fp64, exactly for int8) and rounded once to d."""
    *batch, m, k = a.data.shape
    multiplied(int(np.prod(batch, dtype=int)) * m, b.data.shape[-1], k)
    exact = d.dtype.scalar.is_int() or d.dtype.scalar.is_fp64()
    wide = np.float64 if exact else np.float32
    left, right = a.data.astype(wide, copy=False), b.data.astype(wide, copy=False)
    if input_precision == ir.INPUT_PRECISION.TF32 and a.dtype.scalar.is_fp32():
        left, right = _tf32(left), _tf32(right)
    product = np.matmul(left, right) + d.data.astype(wide, copy=False)
    return TensorHandle(convert(product, d.dtype), d.dtype.scalar)


def _tf32(values: np.ndarray) -> np.ndarray:
    """fp32 with 10 bits of mantissa: what a GPU multiplies unless told input_precision="ieee"."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


# --- reductions and scans

_NAN_FREE = {np.nanmax: np.fmax.reduce, np.nanmin: np.fmin.reduce}  # the same, without warnings


def whole(name: str, method):
    """A reduction or scan counts one FLOP an input element, whatever its combination does."""

    def apply(self, inputs):
        first = inputs[0]
        if first.dtype.is_floating():
            computed(first.handle.data.size, name)
        before, Running.muted = Running.muted, True
        try:
            return method(self, inputs)
        finally:
            Running.muted = before

    return apply


def reduced_to_tensor(self, result, dtype):
    array = np.asarray(result)
    shape = list(array.shape)
    handle = TensorHandle(convert(array if shape else array.reshape(1), dtype), dtype.scalar)
    return tl.core.tensor(handle, tl.block_type(dtype, shape) if shape else dtype)


def install() -> None:
    """Put the functions of this file in the place of Triton's."""
    TensorHandle.origin = None
    TensorHandle.__post_init__ = lambda self: None  # it checks sizes that fp32 for bf16 exceeds
    insides._get_np_dtype, insides._validate_np_data_size = numpy_dtype, fits
    InterpreterBuilder.get_bf16 = get_bf16  # Triton has none
    for name, function in {**vars(memory), **globals()}.items():
        if name in _original and callable(function):
            setattr(InterpreterBuilder, name, function)
    InterpreterBuilder.create_int_to_ptr = InterpreterBuilder.create_ptr_to_int = create_bitcast
    for name in memory.CARRIES_POINTERS:
        setattr(InterpreterBuilder, name, memory.carrying_origin(getattr(InterpreterBuilder, name)))
    for handle in (insides.BlockPointerHandle, insides.TensorDescHandle):
        handle.materialize_pointers = memory.materializing(handle.materialize_pointers)

    reduce, scan = insides.ReduceOps, insides.ScanOps
    min_max = reduce.min_max
    reduce.min_max = lambda self, x, val_reduce_op, idx_reduce_op=None: min_max(
        self, x, _NAN_FREE.get(val_reduce_op, val_reduce_op), idx_reduce_op
    )
    reduce.apply_impl = whole("reduce", reduce.apply_impl)
    scan.apply_impl = whole("scan", scan.apply_impl)
    insides.ReduceScanOpInterface.to_tensor = reduced_to_tensor

    # Overflow checks triple the cost of every index and only ever act in a debug build.
    builder = insides.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)

"""What Triton's interpreter does for an operation, made right: bf16, fp8, memory, NaN, watchers.

Each function here replaces the method of the same name of Triton's `InterpreterBuilder`, whose
signatures differ between Triton versions, hence the `*_` for arguments that change nothing here.
"""

import dataclasses

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as memory
from triton._C.libtriton import ir
from triton.runtime import interpreter as insides
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from kernelbook._access import Running, computed, multiplied, touch
from kernelbook._lowfloat import FORMATS, decode, encode, round_to

_np_dtype = insides._get_np_dtype
_np_dtypes = {name: np.dtype(np.float32) for name in FORMATS}
POINTER = np.dtype(np.uint64)
_fits = insides._validate_np_data_size
_original = {name: getattr(InterpreterBuilder, name) for name in dir(InterpreterBuilder)}


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


# --- memory


def _code_dtype(element) -> np.dtype:
    form = format_of(element)
    return form.code_dtype if form else numpy_dtype(element)


def _codes(element, values: np.ndarray) -> np.ndarray:
    form = format_of(element)
    return encode(form, values) if form else values


def _bools(mask) -> np.ndarray | None:
    return mask.data if isinstance(mask, TensorHandle) else mask


def _element(pointers: TensorHandle):
    return pointers.get_element_ty()


def create_load(self, pointers, *_, **__):
    return create_masked_load(self, pointers, None, None)


def create_store(self, pointers, value, *_, **__):
    return create_masked_store(self, pointers, value, None)


def create_masked_load(self, pointers, mask, other, *_, **__):
    element, active = _element(pointers), _bools(mask)
    code = _code_dtype(element)
    touch("load", pointers.origin, pointers.data, active, code.itemsize)
    shape = pointers.data.shape
    if active is None:
        active = np.ones(shape, bool)
    otherwise = np.zeros(shape, code) if other is None else _codes(element, other.data)
    found = memory.load(pointers.data, active, otherwise, code)
    form = format_of(element)
    return TensorHandle(decode(form, found) if form else found, element)


def create_masked_store(self, pointers, value, mask, *_, **__):
    element, active = _element(pointers), _bools(mask)
    touch("store", pointers.origin, pointers.data, active, _code_dtype(element).itemsize)
    if active is None:
        active = np.ones(pointers.data.shape, bool)
    return memory.store(pointers.data, _codes(element, value.data), active)


def create_atomic_rmw(self, operation, pointers, value, mask, *rest, **more):
    element, active = _element(pointers), _bools(mask)
    touch("atomic", pointers.origin, pointers.data, active, _code_dtype(element).itemsize)
    if operation == ir.ATOMIC_OP.FADD:
        computed(int(np.count_nonzero(active)), "atomic_add")
    if format_of(element) or element.is_fp16():
        return _narrow_atomic(operation, element, pointers, value, active)
    return _original["create_atomic_rmw"](self, operation, pointers, value, mask, *rest, **more)


def _narrow_atomic(operation, element, pointers, value, active):
    """Atomic add or exchange of 16-bit floats, lane by lane: two lanes may share an address."""
    old = np.zeros(pointers.data.shape, numpy_dtype(element))
    active = np.broadcast_to(active, old.shape)
    value = np.broadcast_to(value.data, old.shape)
    for lane in zip(*np.nonzero(active), strict=True):
        address, one, code = pointers.data[lane].reshape(1), np.ones(1, bool), _code_dtype(element)
        found = memory.load(address, one, np.zeros(1, code), code)
        old[lane] = decode(format_of(element), found)[0] if format_of(element) else found[0]
        new = value[lane] if operation == ir.ATOMIC_OP.XCHG else old[lane] + value[lane]
        memory.store(address, _codes(element, convert(np.array([new]), element)), one)
    return TensorHandle(old, element)


def create_atomic_cas(self, pointers, *rest, **more):
    touch("atomic", pointers.origin, pointers.data, None, _code_dtype(_element(pointers)).itemsize)
    return _original["create_atomic_cas"](self, pointers, *rest, **more)


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
    codes = _codes(source.dtype, source.data)
    form = format_of(dtype)
    if form:
        return TensorHandle(decode(form, codes.view(form.code_dtype)), dtype.scalar)
    return TensorHandle(codes.view(numpy_dtype(dtype)), dtype.scalar)


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
    if z.dtype.scalar.is_floating():
        computed(z.data.size, "fma")  # and once more below: a multiplication and an addition
    return _finish(np.add, x.data * y.data + z.data, z.dtype, counted=True)


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


# --- where a pointer comes from

CARRIES_POINTERS = [
    *("create_addptr", "create_splat", "create_unsplat", "create_broadcast", "create_expand_dims"),
    *("create_reshape", "create_trans", "create_bitcast", "create_int_to_ptr", "create_ptr_to_int"),
    *("create_cat", "create_join", "create_split", "create_select", "create_gather"),
]


def carrying_origin(method):
    """The method, whose result knows the tensor argument that its pointers were computed from."""

    def carried(self, *args, **kwargs):
        result = method(self, *args, **kwargs)
        origins = [arg.origin for arg in args if type(arg) is TensorHandle and arg.origin]
        if origins and _one_origin(args):
            for handle in result if isinstance(result, tuple) else (result,):
                handle.origin = origins[0]
        return result

    return carried


def _one_origin(args) -> bool:
    """Whether all pointers among the arguments come from one tensor (a tl.where may mix two)."""
    handles = [arg for arg in args if isinstance(arg, TensorHandle)]
    pointers = [h for h in handles if h.origin or h.dtype.scalar.is_ptr()]
    return len({id(pointer.origin) for pointer in pointers}) == 1


def materializing(method):
    """`materialize_pointers` of descriptors and block pointers, keeping the base's origin."""

    def materialize(self, *args, **kwargs):
        pointers, masks = method(self, *args, **kwargs)
        pointers.origin = self.base.origin
        return pointers, masks

    return materialize


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
    for name, function in globals().items():
        if name in _original or name in ("get_bf16",):
            setattr(InterpreterBuilder, name, function)
    InterpreterBuilder.create_int_to_ptr = InterpreterBuilder.create_ptr_to_int = create_bitcast
    for name in CARRIES_POINTERS:
        setattr(InterpreterBuilder, name, carrying_origin(getattr(InterpreterBuilder, name)))
    for handle in (insides.BlockPointerHandle, insides.TensorDescHandle):
        handle.materialize_pointers = materializing(handle.materialize_pointers)

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

"""Loads, stores and atomics of the interpreter, checked, and told to watchers.

Replaces methods of Triton's `InterpreterBuilder` by name, like `_builder`. A pointer knows which
tensor argument it was computed from (`origin`), so that an access that leaves this tensor is an
error even where it would hit another one.
"""

import numpy as np
from triton._C.libtriton import interpreter as memory
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from kernelbook._access import computed, touch
from kernelbook._lowfloat import decode
from kernelbook._values import code_dtype, codes, convert, format_of, numpy_dtype

_original = {name: getattr(InterpreterBuilder, name) for name in dir(InterpreterBuilder)}


def _bools(mask) -> np.ndarray | None:
    return mask.data if isinstance(mask, TensorHandle) else mask


def element_of(pointers: TensorHandle):
    return pointers.get_element_ty()


def _undefined(element, shape) -> np.ndarray:
    """What a load without `other` leaves in masked lanes: on a GPU anything, here what shows.

    NaN for floats, bytes of 0x5A for whole numbers (90, 1515870810, ...): zeros would hide that
    the kernel uses them.
    """
    if element.is_floating():
        return codes(element, np.full(shape, np.nan, numpy_dtype(element)))
    code = code_dtype(element)
    return np.full(shape, int.from_bytes(b"\x5a" * code.itemsize, "little"), code)


def create_load(self, pointers, *_, **__):
    return create_masked_load(self, pointers, None, None)


def create_store(self, pointers, value, *_, **__):
    return create_masked_store(self, pointers, value, None)


def create_masked_load(self, pointers, mask, other, *_, **__):
    element, active = element_of(pointers), _bools(mask)
    code = code_dtype(element)
    touch("load", pointers.origin, pointers.data, active, code.itemsize)
    shape = pointers.data.shape
    if active is None:
        active = np.ones(shape, bool)
    otherwise = _undefined(element, shape) if other is None else codes(element, other.data)
    found = memory.load(pointers.data, active, otherwise, code)
    form = format_of(element)
    return TensorHandle(decode(form, found) if form else found, element)


def create_masked_store(self, pointers, value, mask, *_, **__):
    element, active = element_of(pointers), _bools(mask)
    touch("store", pointers.origin, pointers.data, active, code_dtype(element).itemsize)
    if active is None:
        active = np.ones(pointers.data.shape, bool)
    return memory.store(pointers.data, codes(element, value.data), active)


def create_atomic_rmw(self, operation, pointers, value, mask, *rest, **more):
    element, active = element_of(pointers), _bools(mask)
    touch("atomic", pointers.origin, pointers.data, active, code_dtype(element).itemsize)
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
        address, one, code = pointers.data[lane].reshape(1), np.ones(1, bool), code_dtype(element)
        found = memory.load(address, one, np.zeros(1, code), code)
        old[lane] = decode(format_of(element), found)[0] if format_of(element) else found[0]
        new = value[lane] if operation == ir.ATOMIC_OP.XCHG else old[lane] + value[lane]
        memory.store(address, codes(element, convert(np.array([new]), element)), one)
    return TensorHandle(old, element)


def create_atomic_cas(self, pointers, *rest, **more):
    touch("atomic", pointers.origin, pointers.data, None, code_dtype(element_of(pointers)).itemsize)
    return _original["create_atomic_cas"](self, pointers, *rest, **more)


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

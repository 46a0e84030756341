"""Run the programs of a launch in the interpreter, on CPU tensors, one after another."""

import functools
import itertools
import os
import types
import warnings
from contextlib import contextmanager

import numpy as np
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime import interpreter as insides
from triton.runtime.interpreter import TensorHandle
from triton.runtime.jit import TensorWrapper

from kernelbook._access import AccessError, Argument, Running, argument
from kernelbook._launches import bind, names_of, refuse_grid, refuse_options, resolve_grid
from kernelbook._rewrite import rewritten
from kernelbook._values import numpy_dtype

builder, semantic = insides.interpreter_builder, insides.interpreter_semantic
_patches: list[tuple] = []  # (module or class, attribute, compiled, interpreted)

_HERE = os.path.dirname(__file__)
INSIDES = (
    os.path.dirname(tl.__path__[0]),
    *(f"{_HERE}/{name}" for name in ("_access", "_builder", "_programs", "interpreter.py")),
)


def run_grid(kernel, grid, args: tuple, kwargs: dict, observers=(), reachable=()) -> None:
    """`kernel[grid](*args, **kwargs)` in the interpreter."""
    for hook in kernel.pre_run_hooks:
        hook(*args, **kwargs)
    bound, kinds, options = bind(kernel, args, kwargs)
    with _named(kernel.fn.__name__):
        refuse_options(options)
    grid = resolve_grid(grid, bound)
    with _named(kernel.fn.__name__):
        refuse_grid(grid)
    if 0 in grid:
        return
    _refuse_libdevice(kernel.fn)

    arguments: list[Argument] = []
    with _interpreting(Running(kernel.fn.__name__, arguments, observers)):
        given = {
            name: _device_value(name, kind, value, arguments)
            for (name, value), kind in zip(bound.items(), kinds, strict=True)
        }
        arguments.extend(argument(f"reachable[{i}]", x) for i, x in enumerate(reachable))
        for observer in observers:
            tensors = {where.name: where.tensor for where in arguments}
            observer.launch(kernel.fn.__name__, grid, tensors)
        try:
            _run_programs(rewritten(kernel.fn, semantic.to_tensor), grid, given)
        except AccessError as error:
            raise error.with_traceback(_in_kernels(error.__traceback__)) from None
        for observer in observers:
            observer.end_launch()


@contextmanager
def _named(kernel: str):
    """What is refused names the kernel."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{kernel}: {error}") from None


def _run_programs(program, grid, given: dict) -> None:
    builder.set_grid_dim(*grid)
    for z, y, x in itertools.product(*map(range, reversed(grid))):
        builder.set_grid_idx(x, y, z)
        program(**given)


def _in_kernels(trace):
    """The traceback without the frames of Triton and of this package: the kernel's own lines."""
    if trace is None:
        return None
    rest = _in_kernels(trace.tb_next)
    if trace.tb_frame.f_code.co_filename.startswith(INSIDES):
        return rest
    return types.TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def call_device_function(function, args, kwargs):
    """A `@triton.jit` function called from a kernel that is being interpreted."""
    return rewritten(function.fn, semantic.to_tensor)(*args, **kwargs)


@contextmanager
def _interpreting(launch: Running):
    """Triton's language means the interpreter's for the duration of a launch, no longer."""
    if not _patches:
        _patches.extend(_collect_patches())
    for place, name, _, interpreted in _patches:
        setattr(place, name, interpreted)
    before, Running.current = Running.current, launch
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            # A GPU says nothing about inf - inf either; block pointers are deprecated, not wrong.
            warnings.filterwarnings("ignore", category=RuntimeWarning)
            warnings.filterwarnings("ignore", message="tl.make_block_ptr is deprecated")
            yield
    finally:
        Running.current = before
        if before is None:
            for place, name, compiled, _ in _patches:
                _restore(place, name, compiled)


def _restore(place, name, compiled):
    if compiled is insides._MISSING:
        delattr(place, name)
    else:
        setattr(place, name, compiled)


def _collect_patches() -> list[tuple]:
    """What Triton's interpreter replaces in `triton.language`, and our own on top of it."""
    everything = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    scope = insides._patch_lang(everything)
    first: dict[tuple, tuple] = {}
    for place, name, original in scope._changes:
        first.setdefault((id(place), name), (place, name, original, getattr(place, name)))
    scope.restore()
    for name, ours in (("__index__", _index), ("T", property(_transposed))):
        first[id(tl.tensor), name] = (*first[id(tl.tensor), name][:3], ours)
    for module in (libdevice, cuda_libdevice):
        for name, function in vars(module).items():
            if getattr(function, "__module__", None) == module.__name__:
                first[id(module), name] = (module, name, function, _no_libdevice)
    inits = ((tl.tensor, _tensor_init), (tl.block_type, _block_type_init))
    return [*first.values(), *((kind, "__init__", kind.__init__, ours) for kind, ours in inits)]


def _no_libdevice(*_, **__):
    """A function of CUDA's own library, in place of a silent None."""
    raise TypeError(
        "libdevice exists on a GPU alone, the interpreter has none: use what tl has, such as "
        "tl.exp, tl.log, tl.sqrt, or write the formula"
    )


@functools.lru_cache(maxsize=256)
def _refuse_libdevice(fn) -> None:
    """Where a kernel names one of its functions directly; `libdevice.exp` is a patch."""
    named = [getattr(value, "__module__", None) for value in names_of(fn).values()]
    if {libdevice.__name__, cuda_libdevice.__name__} & {*named}:
        _no_libdevice()


@functools.lru_cache(maxsize=4096)
def _shape(*sizes: int):
    """Shape and numel, which Triton builds anew for each value in a third of the time it takes."""
    numel = tl.core.validate_block_shape(list(sizes))
    constants = tl.tuple([tl.constexpr(size) for size in sizes])
    return tl.tuple(list(sizes)), constants, numel, tl.constexpr(numel)


def _tensor_init(self, handle, type):
    self.handle, self.type, self.dtype = handle, type, type.scalar
    _, self.shape, _, self.numel = _shape(*type.shape) if type.is_block() else _shape()


def _block_type_init(self, element_ty, shape):
    sizes = [size.value if isinstance(size, tl.constexpr) else size for size in shape]
    if not sizes:
        raise TypeError("0d block_type is forbidden")
    self.element_ty = element_ty
    self.shape, _, self.numel, _ = _shape(*sizes)
    self.name = f"<{sizes}, {element_ty}>"


def _index(tensor) -> int:
    """A scalar tensor as a loop bound: Triton 3.6 fails here with numpy 2.4."""
    return int(tensor.handle.data.item())


def _transposed(tensor):
    """`x.T` like `tl.trans(x)`: pointers keep the argument that they come from."""
    order = range(len(tensor.shape))
    return semantic.permute(tensor, (*order[:-2], order[-1], order[-2]))


def _device_value(name: str, kind, value, arguments: list[Argument]):
    """An argument as the kernel sees it; tensors are added to `arguments`."""
    if isinstance(kind, tuple):
        named = zip([f"{name}[{i}]" for i in range(len(kind))], kind, value, strict=True)
        return insides._tuple_create(value, [_device_value(*each, arguments) for each in named])
    if kind == "constexpr":
        # An integer argument that is 1 is a constant to the compiler, and still a number here.
        return value
    if kind.startswith("*"):
        return _pointer(name, kind, value, arguments)
    if kind.startswith("tensordesc"):
        return _descriptor(name, value, arguments)
    dtype = tl.str_to_ty(kind, None)
    return tl.tensor(TensorHandle(np.array([value], numpy_dtype(dtype)), dtype), dtype)


def _pointer(name: str, kind: str, tensor, arguments: list[Argument]):
    tensor = tensor.base if isinstance(tensor, TensorWrapper) else tensor
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} is on {tensor.device}; the interpreter takes CPU tensors alone")
    arguments.append(argument(name, tensor))
    dtype = tl.str_to_ty(kind, None)
    handle = TensorHandle(np.array([tensor.data_ptr()], np.uint64), dtype)
    handle.origin = arguments[-1]
    return tl.tensor(handle, dtype)


def _descriptor(name: str, descriptor, arguments: list[Argument]):
    kind = "*" + insides.triton.runtime.jit.mangle_type(descriptor.base).removeprefix("*")
    *strides, _one = [_number(stride) for stride in descriptor.strides]
    return semantic.make_tensor_descriptor(
        base=_pointer(name, kind, descriptor.base, arguments),
        shape=[_number(size) for size in descriptor.shape],
        strides=[*strides, tl.constexpr(1)],
        block_shape=[tl.constexpr(size) for size in descriptor.block_shape],
        padding_option=descriptor.padding,
    )


def _number(value: int):
    dtype = tl.int64
    return tl.tensor(TensorHandle(np.array([value], np.int64), dtype), dtype)

"""Run the programs of a launch in the interpreter, on CPU tensors, one after another."""

import ast
import functools
import inspect
import textwrap
import types
import warnings
import weakref
from contextlib import contextmanager

import numpy as np
import triton.language as tl
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime import interpreter as insides
from triton.runtime.interpreter import TensorHandle
from triton.runtime.jit import TensorWrapper

from kernelbook._access import Argument, Running, argument
from kernelbook._launches import bind, resolve_grid
from kernelbook._values import numpy_dtype

builder, semantic = insides.interpreter_builder, insides.interpreter_semantic
_rewritten = weakref.WeakKeyDictionary()
_patches: list[tuple] = []  # (module or class, attribute, compiled, interpreted)

# Launch options that only the compiler reads; anything else that is no parameter is a misspelling.
OPTIONS = {*CUDAOptions.__dataclass_fields__, "debug", "instrumentation_mode", "ir_override"}


def run_grid(kernel, grid, args: tuple, kwargs: dict, observers=(), reachable=()) -> None:
    """`kernel[grid](*args, **kwargs)` in the interpreter."""
    for hook in kernel.pre_run_hooks:
        hook(*args, **kwargs)
    bound, kinds, options = bind(kernel, args, kwargs)
    unknown = options.keys() - OPTIONS
    if unknown:
        raise TypeError(f"kernel {kernel.fn.__name__} has no parameter {sorted(unknown)}")
    grid = resolve_grid(grid, bound)
    if grid[1] > 65535 or grid[2] > 65535:
        raise ValueError(f"a GPU takes at most 65535 programs along y and z, the grid is {grid}")
    if 0 in grid:
        return

    arguments: list[Argument] = []
    launch = Running(kernel.fn.__name__, arguments, observers)
    with _interpreting(launch):
        given = {
            name: _device_value(name, kind, value, arguments)
            for (name, value), kind in zip(bound.items(), kinds, strict=True)
        }
        arguments.extend(argument(f"reachable[{i}]", x) for i, x in enumerate(reachable))
        for observer in observers:
            tensors = {where.name: where.tensor for where in arguments}
            observer.launch(kernel.fn.__name__, grid, tensors)
        program = rewritten(kernel.fn)
        builder.set_grid_dim(*grid)
        for z in range(grid[2]):
            for y in range(grid[1]):
                for x in range(grid[0]):
                    builder.set_grid_idx(x, y, z)
                    program(**given)
        for observer in observers:
            observer.end_launch()


def call_device_function(function, args, kwargs):
    """A `@triton.jit` function called from a kernel that is being interpreted."""
    return rewritten(function.fn)(*args, **kwargs)


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
    inits = ((tl.tensor, _tensor_init), (tl.block_type, _block_type_init))
    return [*first.values(), *((kind, "__init__", kind.__init__, ours) for kind, ours in inits)]


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


class _Assignments(ast.NodeTransformer):
    """`x = 0` makes a tensor, as it does when compiled."""

    def visit_Assign(self, node):
        if len(node.targets) > 1:
            raise ValueError("a kernel cannot assign to several names at once (a = b = ...)")
        call = ast.Name(id="__to_tensor", ctx=ast.Load())
        node.value = ast.Call(func=call, args=[node.value, ast.Constant(False)], keywords=[])
        return node


def rewritten(fn: types.FunctionType) -> types.FunctionType:
    """`fn` with its assignments making tensors; same globals, closure, file and line numbers."""
    if fn not in _rewritten:
        _rewritten[fn] = _rewrite(fn)
    return _rewritten[fn]


def _rewrite(fn):
    try:
        lines, start = inspect.getsourcelines(fn)
    except (OSError, TypeError):
        return fn  # no source text: run it as it is
    tree = _Assignments().visit(ast.parse(textwrap.dedent("".join(lines))))
    kernel = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    kernel.decorator_list = []
    # Names of the enclosing function must stay closure variables: define it inside a function.
    free = ["__to_tensor", *fn.__code__.co_freevars]
    factory = ast.parse(f"def factory({', '.join(free)}): pass").body[0]
    factory.body = [kernel]
    ast.increment_lineno(kernel, start - 1)
    module = ast.fix_missing_locations(ast.Module([factory], []))
    outer = _code_named("factory", compile(module, fn.__code__.co_filename, "exec"))
    code = _code_named(fn.__name__, outer)
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    cells["__to_tensor"] = types.CellType(semantic.to_tensor)
    closure = tuple(cells[name] for name in code.co_freevars)
    return types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, closure)


def _code_named(name: str, code: types.CodeType) -> types.CodeType:
    found = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return next(const for const in found if const.co_name == name)

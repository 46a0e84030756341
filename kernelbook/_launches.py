"""What a Triton launch consists of, recorded without running it: enough to compile it elsewhere."""

import dis
import functools
import inspect
import textwrap
import types
from dataclasses import dataclass, field

import triton.language as tl
from triton._utils import find_paths_if, get_iterable_path
from triton.backends.compiler import BaseBackend
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITCallable, JITFunction, create_function_from_signature

# What a kernel may name as a global and we can write down as text.
CONSTANTS = (int, float, str, bytes, type(None), tuple, list, dict, tl.constexpr, tl.dtype)
# Launch options that only the compiler reads; anything else that is no parameter is a misspelling.
OPTIONS = {*CUDAOptions.__dataclass_fields__, "debug", "instrumentation_mode", "ir_override"}
MAX_WARPS = 32  # 1024 threads a program
MAX_GRID = (2**31 - 1, 65535, 65535)


@dataclass
class Source:
    """A device function as text, and what each of its global (or closure) names stands for.

    text       from `def` on, dedented, without decorators
    module     the Python module it was written in ("__main__" in a notebook), file and line there
    decorator  "jit", "constexpr_function" or "" (plain Python)
    functions  name -> Source of the helper functions it calls, and they theirs
    constants  name -> value: plain values, tl.constexpr, tl.dtype
    modules    name -> module, e.g. {"tl": "triton.language"}
    imports    name -> (module, attribute) of things taken out of Triton's own modules
    """

    name: str
    text: str
    module: str
    file: str
    line: int
    decorator: str = "jit"
    functions: dict[str, "Source"] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass
class Launch:
    """One recorded launch, in the terms of `triton.compiler.ASTSource`.

    fn          the Python function under `@triton.jit`; `source` is the same as text
    grid        programs along x, y, z
    signature   argument -> "*bf16", "i32", "fp32", "tensordesc<bf16[64, 128]>", "constexpr" ...
                As Triton specializes: an integer 1 and None are "constexpr".
    constexprs  argument (or a path into a tuple argument) -> value; a function is a `Source`
    attrs       path of an argument -> [["tt.divisibility", 16]] where a pointer or int has it
    options     what else was passed: num_warps, num_stages, num_ctas, maxnreg ...
    jit_options what `@triton.jit(...)` was given
    autotuned   one of several configurations of an autotuned kernel (each is recorded)
    """

    kernel: str
    fn: types.FunctionType
    grid: tuple[int, int, int]
    signature: dict[str, object]
    constexprs: dict
    attrs: dict
    options: dict = field(default_factory=dict)
    jit_options: dict = field(default_factory=dict)
    autotuned: bool = False

    @property
    def num_warps(self) -> int:
        return self.options.get("num_warps", 4)

    @property
    def num_stages(self) -> int:
        return self.options.get("num_stages", 3)

    @property
    def programs(self) -> int:
        x, y, z = self.grid
        return x * y * z

    @functools.cached_property
    def source(self) -> Source:
        return source_of(self.fn)


def record_launch(kernel, grid, args: tuple, kwargs: dict, autotuned=False) -> Launch:
    """The `Launch` of `kernel[grid](*args, **kwargs)`, specialized by Triton's own rules."""
    jitted, binder = _binder(kernel)
    bound, specialization, options = binder(*args, **kwargs)
    names = [parameter.name for parameter in jitted.params]
    types_ = [kind for kind, _ in specialization]
    values = list(bound.values())

    constexprs = {}
    for path in find_paths_if(types_, lambda _, kind: kind == "constexpr"):
        value = get_iterable_path(values, path)
        constexprs[names[path[0]] if len(path) == 1 else path] = _constant(value)
    hints = ["" if kind == "constexpr" else hint for kind, hint in specialization]
    attrs = {
        path: BaseBackend.parse_attr(get_iterable_path(hints, path))
        for path in find_paths_if(hints, lambda _, hint: isinstance(hint, str))
    }
    return Launch(
        kernel=jitted.fn.__name__,
        fn=jitted.fn,
        grid=resolve_grid(grid, bound),
        signature=dict(zip(names, types_, strict=True)),
        constexprs=constexprs,
        attrs={path: attr for path, attr in attrs.items() if attr},
        options=options,
        jit_options=jit_options(kernel),
        autotuned=autotuned,
    )


def bind(kernel, args: tuple, kwargs: dict):
    """(name -> value, Triton's type of each, other options) of a call, defaults filled in."""
    _, binder = _binder(kernel)
    try:
        bound, specialization, options = binder(*args, **kwargs)
    except TypeError as error:  # Triton's binder has a name of its own
        message = str(error).replace("dynamic_func()", f"kernel {kernel.fn.__name__}")
        raise TypeError(message) from None
    return bound, [kind for kind, _ in specialization], options


def resolve_grid(grid, bound: dict) -> tuple[int, int, int]:
    """The grid, which may be a function of the arguments, as three integers."""
    grid = tuple(int(n) for n in (grid(bound) if callable(grid) else grid))
    if not 1 <= len(grid) <= 3:
        raise ValueError(f"a grid has 1 to 3 dimensions, got {grid}")
    return grid + (1,) * (3 - len(grid))


def refuse_options(options: dict) -> None:
    """TypeError or ValueError for launch options that a GPU does not take."""
    unknown = options.keys() - OPTIONS
    if unknown:
        raise TypeError(f"the kernel has no parameter {sorted(unknown)}")
    warps = options.get("num_warps", 4)
    if warps not in (1, 2, 4, 8, 16, MAX_WARPS):
        raise ValueError(
            f"num_warps must be a power of two, at most {MAX_WARPS} (1024 threads), got {warps}"
        )


def refuse_grid(grid: tuple[int, int, int]) -> None:
    """ValueError for a grid that a GPU does not take; one with a 0 launches nothing."""
    if min(grid) < 0:
        raise ValueError(f"a grid cannot be negative, it is {grid}")
    for axis, programs, most in zip("xyz", grid, MAX_GRID, strict=True):
        if programs > most:
            raise ValueError(
                f"a GPU takes at most {most} programs along {axis}, the grid is {grid}"
            )


def jit_options(kernel) -> dict:
    """Arguments of `@triton.jit(...)` that change what is compiled."""
    wanted = ("do_not_specialize", "do_not_specialize_on_alignment", "noinline")
    given = kernel.kwargs if isinstance(kernel, InterpretedFunction) else vars(kernel)
    return {name: given[name] for name in wanted if given.get(name)}


@functools.lru_cache(maxsize=256)
def _binder(kernel):
    jitted = kernel
    if isinstance(kernel, InterpretedFunction):
        jitted = JITFunction(kernel.fn, **jit_options(kernel))
    return jitted, create_function_from_signature(jitted.signature, jitted.params, BaseBackend)


def _constant(value):
    if isinstance(value, InterpretedFunction | JITCallable):
        return source_of(value.fn)
    return value.value if isinstance(value, tl.constexpr) else value


def source_of(fn: types.FunctionType, decorator: str = "jit") -> Source:
    """The text of a device function and of everything its global names lead to."""
    lines, start = inspect.getsourcelines(fn)
    first = next(i for i, line in enumerate(lines) if line.lstrip().startswith("def "))
    source = Source(
        name=fn.__name__,
        text=textwrap.dedent("".join(lines[first:])),
        module=fn.__module__,
        file=inspect.getsourcefile(fn) or "",
        line=start + first,
        decorator=decorator,
    )
    for name, value in names_of(fn).items():
        _file(source, name, value)
    return source


def names_of(fn: types.FunctionType) -> dict[str, object]:
    """Global and closure names that `fn` may use, with what they stand for now."""
    names = _global_names(fn.__code__)
    found = {name: fn.__globals__[name] for name in sorted(names) if name in fn.__globals__}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _global_names(code: types.CodeType) -> set[str]:
    """Names that the code looks up as globals: an attribute, as in `tl.softmax`, is none."""
    steps = dis.get_instructions(code)
    names = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return names.union(*map(_global_names, inner))


def _file(source: Source, name: str, value) -> None:
    jitted = isinstance(value, InterpretedFunction | JITCallable)
    module = getattr(value.fn if jitted else value, "__module__", None) or ""
    if isinstance(value, types.ModuleType):
        source.modules[name] = value.__name__
    elif isinstance(value, CONSTANTS):
        source.constants[name] = value
    elif module.split(".")[0] == "triton" and hasattr(value, "__name__"):
        source.imports[name] = (module, value.__name__)
    elif isinstance(value, InterpretedFunction | JITFunction):
        source.functions[name] = source_of(value.fn)
    elif jitted:
        source.functions[name] = source_of(value.fn, "constexpr_function")
    elif isinstance(value, types.FunctionType) and value.__closure__ is None:
        source.functions[name] = source_of(value, "")

"""Triton's interpreter, made right and safe, and open to observers.

Everything that touches the insides of Triton is in this file and in those it is made of:
`_lowfloat` (bf16 and fp8 numbers), `_values` (how arrays hold them), `_builder` (what an operation
computes), `_builder_memory` and `_access` (what a launch may touch), `_programs` and `_rewrite`
(running a grid), `_launches` (recording instead of running).
Students' kernels profit without doing anything: `import kernelbook` installs it.
"""

from contextlib import contextmanager

from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelbook import _builder, _programs, backend
from kernelbook._access import AccessError, Running
from kernelbook._launches import Launch, Source, record_launch, source_of

__all__ = [
    "AccessError",
    "Launch",
    "Source",
    "capture_launches",
    "install",
    "observe",
    "reachable",
    "source_of",
]

_observers: list = []
_reachable: list = []
_captures: list[list[Launch]] = []
_compiled = {kind: kind.run for kind in (JITFunction, Autotuner)}
_call_outside = JITFunction.__call__


def install() -> None:
    """Patch Triton, once: kernels run where their tensors are, and right where that is the CPU."""
    if InterpretedFunction.run is _run_interpreted:
        return
    _builder.install()
    InterpretedFunction.run = _run_interpreted
    InterpretedFunction.__call__ = _call
    JITFunction.run = _run_jitted
    JITFunction.__call__ = _call
    Autotuner.run = _run_autotuned


@contextmanager
def observe(observer):
    """Tell `observer` what interpreted kernels do. All of its methods are optional.

    launch(kernel, grid, tensors)   before the first program; tensors: argument name -> tensor
    end_launch()                    after the last program
    access(kind, argument, offsets, itemsize)
                                    a block's active lanes; kind "load", "store" or "atomic";
                                    offsets count elements of `itemsize` bytes from the argument's
                                    first byte
    dot(m, n, k)                    a matrix product
    arithmetic(elements, operation) element arithmetic in floating point; reductions and scans count
                                    their input's elements
    """
    _observers.append(_Complete(observer))
    try:
        yield observer
    finally:
        _observers.pop()


class _Complete:
    """An observer that answers every call."""

    METHODS = ("launch", "end_launch", "access", "dot", "arithmetic")

    def __init__(self, observer):
        for name in self.METHODS:
            setattr(self, name, getattr(observer, name, lambda *_: None))


@contextmanager
def reachable(*tensors):
    """Tensors that kernels reach through pointers read from memory, not through an argument."""
    _reachable.extend(tensors)
    try:
        yield
    finally:
        del _reachable[len(_reachable) - len(tensors) :]


@contextmanager
def capture_launches():
    """Record launches instead of running them: `with capture_launches() as launches:`.

    An autotuned kernel records one `Launch` for each configuration that its pruning leaves.
    """
    launches: list[Launch] = []
    _captures.append(launches)
    try:
        yield launches
    finally:
        _captures.remove(launches)


def _run_interpreted(self, *args, grid, warmup=False, **kwargs):
    autotuned = kwargs.pop("_autotuned", False)
    if _captures:
        _captures[-1].append(record_launch(self, grid, args, kwargs, autotuned))
    elif not warmup:
        _programs.run_grid(self, grid, args, kwargs, _observers, _reachable)


def _run_jitted(self, *args, grid, warmup=False, **kwargs):
    if _captures or _interpreted(args, kwargs):
        return _run_interpreted(self, *args, grid=grid, warmup=warmup, **kwargs)
    if _observers:
        raise ValueError(
            f"kernel {self.fn.__name__} got tensors of another device than the CPU, so that nobody "
            "can observe it: pass tensors as arguments of meter.count, not through a closure"
        )
    return _compiled[JITFunction](self, *args, grid=grid, warmup=warmup, **kwargs)


def _run_autotuned(self, *args, **kwargs):
    """Without a GPU to tune on: the first configuration that pruning leaves, all when recording."""
    if not (_captures or _interpreted(args, kwargs)):
        return _compiled[Autotuner](self, *args, **kwargs)
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    configs = self.prune_configs(kwargs)
    tuned = {"_autotuned": True} if _captures and len(configs) > 1 else {}
    for config in configs if _captures else configs[:1]:
        self.best_config = config
        options = {**kwargs, **config.all_kwargs()}
        if config.pre_hook is not None:  # such a hook sets the block shapes of host descriptors
            config.pre_hook({**self.nargs, **options})
        self.fn.run(*args, **options, **tuned)
    self.nargs = None


def _interpreted(args, kwargs) -> bool:
    """Whether a launch belongs to the interpreter: no GPU, or all of its tensors on the CPU."""
    devices = set(_devices([*args, *kwargs.values()]))
    return devices == {"cpu"} or (not devices and not backend.GPU)


def _devices(values):
    for value in values:
        if isinstance(value, tuple):
            yield from _devices(value)
        elif isinstance(value, TensorDescriptor):
            yield value.base.device.type
        elif hasattr(value, "data_ptr") and hasattr(value, "device"):
            yield value.device.type


def _call(self, *args, **kwargs):
    """A device function called: only from a kernel that is being interpreted."""
    if Running.current is None:
        return _call_outside(self, *args, **kwargs)
    return _programs.call_device_function(self, args, kwargs)

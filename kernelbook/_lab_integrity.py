"""Points come from the course's own functions: are they still what was imported?

This stops accidents and simple tricks. It is no sandbox: a notebook can do anything to Python.
"""

import inspect
import sys

import torch
import triton
import triton.language as tl

from kernelbook import (
    _lab_answers,
    _lab_compare,
    _lab_kernels,
    _lab_reasons,
    _meter_bytes,
    _meter_kernels,
    _meter_operations,
    _meter_waits,
    checks,
    compiled,
    interpreter,
    meter,
    work,
)

CHANGED = "this notebook changes the course's own functions ({}): restart it without that"
RENAMED = (
    "this notebook gives the name `{}`, which the tests use, another meaning: rename yours, "
    "restart, and run all cells from the top"
)
_modules = [
    *(_lab_answers, _lab_compare, _lab_kernels, _lab_reasons),
    *(_meter_bytes, _meter_kernels, _meter_operations, _meter_waits),
    *(checks, compiled, interpreter, meter, work),
]
_names = {"meter": meter, "torch": torch, "triton": triton, "tl": tl}
_names |= {"Work": work.Work, "MACHINES": work.MACHINES, "relative_error": checks.relative_error}
_given: dict[str, object] = {}
_known: dict[str, tuple] = {}


def keep(module) -> None:
    """Remember the functions of all modules as they are; `module` is `kernelbook.lab`."""
    _modules.append(module)
    _names["lab"] = module
    for each in _modules:
        _known.update(_state(each))


def given(function):
    """Mark a function of a lab's locked cell: `@lab.given`. Tests insist that it is still that."""
    _given[function.__name__] = function
    return function


def changed() -> list[str]:
    """Names of the course's functions that are not what was imported."""
    now = {}
    for module in _modules:
        now |= _state(module)
        if sys.modules.get(module.__name__) is not module:
            return [module.__name__]
    return [
        name
        for name in _known | now
        if len(now.get(name, ())) != len(_known.get(name, ()))
        or any(a is not b for a, b in zip(now[name], _known[name], strict=True))
    ]


def renamed(namespace: dict) -> list[str]:
    """Names that tests use and that the notebook gave another meaning."""
    ours = {n: f for n, f in _given.items() if getattr(f, "__globals__", None) is namespace}
    expected = (_names | ours).items()
    return [name for name, what in expected if namespace.get(name, what) is not what]


def _state(module) -> dict[str, tuple]:
    found = {}
    for name, value in vars(module).items():
        if name.startswith("__"):
            continue
        found[f"{module.__name__}.{name}"] = _identity(value)
        if inspect.isclass(value) and value.__module__ == module.__name__:
            for inner, member in vars(value).items():
                if inspect.isroutine(member) or isinstance(member, property):
                    found[f"{module.__name__}.{name}.{inner}"] = _identity(member)
    return found


def _identity(value) -> tuple:
    """The object, and the code and defaults of the functions in it."""
    functions = [value]
    if isinstance(value, property | staticmethod | classmethod):
        functions = [getattr(value, name, None) for name in ("fget", "__func__")]
    functions = [inspect.unwrap(f) for f in functions if inspect.isfunction(f)]
    parts = [(f.__code__, f.__defaults__, f.__kwdefaults__) for f in functions]
    return (value, *(part for each in parts for part in each))

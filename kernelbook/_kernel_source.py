"""A recorded launch as a job for the compiling process: JSON, with every function as a module.

A kernel may be defined in a notebook, in a test, or in a module whose import is slow. So each
function travels as text: above it the modules, helper functions and constants that it names, as
they were at the launch. A module's name is the hash of its text.
"""

import ast
import hashlib

import triton.language as tl

from kernelbook._launches import Launch, Source

HEADER = """import triton as _triton

class _PythonObject:
    def __getattr__(self, name):  # so that the compiler refuses the object, not an attribute
        if name.startswith("__"):
            raise AttributeError(name)
        return self
"""
NOT_SHIPPED = "_PythonObject()"  # kernels cannot use these
DECORATORS = {"constexpr_function": "@_triton.constexpr_function\n", "": ""}


class UnencodableError(ValueError):
    """A launch's constant that no text stands for."""


def literal(value) -> str | None:
    """Python text of a number, string, dtype, constexpr, or list or tuple of them; else None."""
    if isinstance(value, tl.dtype):
        return f"_triton.language.dtype({value.name!r})"
    if isinstance(value, tl.constexpr):
        inner = literal(value.value)
        return inner and f"_triton.language.constexpr({inner})"
    if isinstance(value, float):
        return f"float({str(value)!r})"  # repr(inf) is not Python
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, tuple | list):
        items = [literal(item) for item in value]
        if None not in items:
            return f"{type(value).__name__}([{', '.join(items)}])"
    return None


def add_module(source: Source, jit_options: dict, modules: dict[str, str]) -> str:
    """Write `source` and its helpers into `modules` (name -> text); the name of its module."""
    lines = [HEADER]
    for name, helper in source.functions.items():
        module = add_module(helper, {}, modules)
        lines += [f"import {module}", f"{name} = {module}.{helper.name}"]
    for name, (module, attribute) in source.imports.items():
        lines += [f"import {module}", f"{name} = {module}.{attribute}"]
    for name, module in source.modules.items():
        shipped = module.split(".")[0] in ("triton", "math")
        lines += [f"import {module}"] if shipped else []
        lines.append(f"{name} = {module if shipped else NOT_SHIPPED}")
    for name, value in source.constants.items():
        lines.append(f"{name} = {literal(value) or NOT_SHIPPED}")
    lines += stand_ins(source)
    options = ", ".join(f"{name}={value!r}" for name, value in jit_options.items())
    lines.append("\n" + DECORATORS.get(source.decorator, f"@_triton.jit({options})\n"))
    text = "\n".join(lines) + source.text
    module = "shipped_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    modules[module] = text
    return module


def stand_ins(source: Source) -> list[str]:
    """Definitions of names that only the signature mentions, such as a default's constant.

    The launch has already bound every argument, so only their existence matters; annotations
    name `triton.language` or something in it.
    """
    known = source.functions | source.imports | source.modules | source.constants
    arguments = ast.parse(source.text).body[0].args
    names = {node.id for node in ast.walk(arguments) if isinstance(node, ast.Name)}
    language = "_triton.language"
    return [f"{n} = getattr({language}, {n!r}, {language})" for n in sorted(names - known.keys())]


def encode(value, modules: dict[str, str]) -> dict:
    """A constant as JSON: {"value" | "dtype" | "function" | "tuple" | "constexpr": ...}."""
    if isinstance(value, tl.constexpr):
        return {"constexpr": encode(value.value, modules)}
    if isinstance(value, tl.dtype):
        return {"dtype": value.name}
    if isinstance(value, Source):
        return {"function": [add_module(value, {}, modules), value.name]}
    if isinstance(value, tuple | list):
        return {"tuple": [encode(item, modules) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise UnencodableError(f"a constant of type {type(value).__name__} cannot be compiled in")


def job_of(launch: Launch) -> dict:
    """Everything that the compiling process needs to know about a launch, ready for JSON."""
    modules: dict[str, str] = {}
    module = add_module(launch.source, launch.jit_options, modules)
    constants = [
        [path if isinstance(path, str) else list(path), encode(value, modules)]
        for path, value in launch.constexprs.items()
    ]
    return {
        "kernel": launch.kernel,
        "module": module,
        "modules": modules,
        "signature": launch.signature,
        "constants": constants,
        "attributes": [[list(path), hint] for path, hint in launch.attrs.items()],
        "options": {name: value for name, value in launch.options.items() if name != "grid"},
    }

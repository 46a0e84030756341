"""A kernel's Python, rewritten so that it can run as Python.

Triton's own rewriting loses closures and leaves its names in the kernel's globals.
"""

import ast
import inspect
import textwrap
import types
import weakref

_rewritten = weakref.WeakKeyDictionary()


class _Assignments(ast.NodeTransformer):
    """`x = 0` makes a tensor, as it does when compiled."""

    def visit_Assign(self, node):
        if len(node.targets) > 1:
            raise ValueError("a kernel cannot assign to several names at once (a = b = ...)")
        call = ast.Name(id="__to_tensor", ctx=ast.Load())
        node.value = ast.Call(func=call, args=[node.value, ast.Constant(False)], keywords=[])
        return node


def rewritten(fn: types.FunctionType, to_tensor) -> types.FunctionType:
    """`fn` with its assignments making tensors; same globals, closure, file and line numbers."""
    if fn not in _rewritten:
        _rewritten[fn] = _rewrite(fn, to_tensor)
    return _rewritten[fn]


def _rewrite(fn, to_tensor):
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
    cells["__to_tensor"] = types.CellType(to_tensor)
    closure = tuple(cells[name] for name in code.co_freevars)
    return types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, closure)


def _code_named(name: str, code: types.CodeType) -> types.CodeType:
    found = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return next(const for const in found if const.co_name == name)

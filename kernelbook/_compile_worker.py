"""The process that compiles kernels offline; started by `compiled`, never imported.

It runs without TRITON_INTERPRET and imports neither torch nor kernelbook, so it starts in a
fraction of a second. Input: one JSON job a line. Output: one JSON answer a line.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource
from triton.compiler.errors import CompilationError


def decode(value: dict):
    """A value as `_kernel_source.encode` wrote it: literal, dtype, function or tuple."""
    if "dtype" in value:
        return tl.dtype(value["dtype"])
    if "function" in value:
        module, name = value["function"]
        return getattr(importlib.import_module(module), name)
    if "tuple" in value:
        return tuple(decode(item) for item in value["tuple"])
    if "constexpr" in value:
        return decode(value["constexpr"])
    return value["value"]


def tuples(kind):
    """JSON's lists back to the tuples of a signature."""
    return tuple(tuples(part) for part in kind) if isinstance(kind, list) else kind


def source_of(job: dict) -> ASTSource:
    """The kernel with its signature, constants and attributes."""
    kernel = getattr(importlib.import_module(job["module"]), job["kernel"])
    signature = {name: tuples(kind) for name, kind in job["signature"].items()}
    constants = {tuples(path): decode(value) for path, value in job["constants"]}
    attributes = {tuples(path): hint for path, hint in job["attributes"]}
    return ASTSource(kernel, signature, constants, attributes)


class TooLarge(Exception):
    """The kernel asks for more than an SM has; `kind` is "tile" or "shared"."""

    def __init__(self, kind: str, **facts):
        super().__init__(kind)
        self.facts = {"kind": kind, **facts}


def tile_bytes(shape: str, kind: str) -> int:
    """Bytes of a tile from its spelling in the IR: ("512x512", "f32") -> 1048576."""
    elements = 1
    for size in shape.split("x"):
        elements *= int(size)
    return elements * int(re.search(r"\d+", kind)[0]) // 8


def check_tiles(module, num_warps: int):
    """Refuse a tile twice as large as all registers that its program can have.

    The compiler would spill it to memory, after minutes to hours of compiling.
    """
    registers = 4 * min(num_warps * 32 * 255, 65536)
    tiles = set(re.findall(r"tensor<((?:\d+x)*\d+)x((?:f|bf|i)\d+\w*)>", str(module)))
    size, kind, shape = max(((tile_bytes(*t), t[1], t[0]) for t in tiles), default=(0, "", ""))
    if size >= 2 * registers:
        facts = {"shape": shape, "dtype": kind, "bytes": size, "registers": registers}
        raise TooLarge("tile", num_warps=num_warps, **facts)


def check_early(shared_limit: int):
    """Look at tiles and shared memory between the compiler's stages, before its slow ones."""
    add_stages = CUDABackend.add_stages

    def add_checked_stages(self, stages, options, language):
        add_stages(self, stages, options, language)
        ttir, llir = stages["ttir"], stages["llir"]

        def checked_ttir(source, metadata):
            module = ttir(source, metadata)
            check_tiles(module, options.num_warps)
            return module

        def checked_llir(source, metadata):
            module = llir(source, metadata)
            if metadata["shared"] > shared_limit:
                raise TooLarge("shared", bytes=metadata["shared"], limit=shared_limit)
            return module

        stages["ttir"], stages["llir"] = checked_ttir, checked_llir

    return add_stages, add_checked_stages


def resources(cubin: bytes) -> dict:
    """Registers a thread and bytes of stack a thread (spills) of a compiled kernel."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "-res-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers = [int(n) for n in re.findall(r"REG:(\d+)", printed)]
    stack = [int(n) for n in re.findall(r"STACK:(\d+)", printed)]
    return {"registers": max(registers), "spill_bytes": max(stack)}


def compile_job(job: dict) -> dict:
    """Compile one kernel for one target; what it uses."""
    target = GPUTarget("cuda", job["target"], 32)
    original, CUDABackend.add_stages = check_early(job["shared_limit"])
    try:
        compiled = triton.compile(source_of(job), target=target, options=job["options"])
    finally:
        CUDABackend.add_stages = original
    metadata = compiled.metadata
    if metadata.shared > job["shared_limit"]:  # from Triton's cache, unchecked
        raise TooLarge("shared", bytes=metadata.shared, limit=job["shared_limit"])
    used = {"shared_bytes": metadata.shared, "num_warps": metadata.num_warps}
    return used | resources(compiled.asm["cubin"])


def refusal(error: BaseException, printed: str) -> dict:
    """What the compiler said and where: the innermost place in the reader's own code."""
    line, text, reason, function = None, None, f"{type(error).__name__}: {error}", None
    seen = error
    while seen is not None:
        if isinstance(seen, CompilationError):
            if not own_source(seen.src):
                break
            line, text, function = place(seen)
            reason = seen.error_message or reason_of(seen.__cause__) or str(seen)
        elif line is not None:
            reason = reason_of(seen)
        seen = seen.__cause__
    return {
        "error": type(error).__name__,
        "reason": reason,
        "line": line,
        "text": text,
        "function": function,
        "printed": printed[-4000:],
    }


def reason_of(cause) -> str | None:
    """The message of an exception below a CompilationError; deeper ones carry their own."""
    if cause is None or isinstance(cause, CompilationError):
        return None
    return str(cause) or type(cause).__name__


def own_source(source: str | None) -> bool:
    """Whether a source text is one that was shipped here, not one of Triton's library."""
    return source is not None and any(source.strip() in text for text in SHIPPED)


def place(error: CompilationError) -> tuple:
    """Line number within the function (its `def` is line 1), the line's text, and the function."""
    lines = error.src.split("\n")
    name = re.match(r"def\s+(\w+)", error.src)
    line = getattr(error.node, "lineno", None)
    text = lines[line - 1].strip() if line else None
    return line, text, name.group(1) if name else None


SHIPPED: list[str] = []


def answer(job: dict, folder: Path, diagnostics) -> dict:
    """Run one job; every failure becomes a refusal."""
    SHIPPED[:] = list(job["modules"].values())
    for name, text in job["modules"].items():
        path = folder / f"{name}.py"
        if not path.exists():
            path.write_text(text)
    importlib.invalidate_caches()
    diagnostics.seek(0)
    diagnostics.truncate()
    try:
        return compile_job(job)
    except TooLarge as error:
        return {"error": "TooLarge", **error.facts}
    except Exception as error:
        sys.stderr.flush()
        diagnostics.seek(0)
        found = refusal(error, diagnostics.read())
        if found["line"] is None:
            found["printed"] = traceback.format_exc()[-2000:] + found["printed"]
        return found


def main():
    """Answer jobs until the input ends. Only answers go to the original standard output."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as diagnostics:
        os.dup2(2, 1)
        os.dup2(diagnostics.fileno(), 2)  # MLIR and ptxas print there what exceptions leave out
        sys.path.insert(0, folder)
        for line in sys.stdin:
            answers.write(json.dumps(answer(json.loads(line), Path(folder), diagnostics)) + "\n")


if __name__ == "__main__":
    main()

"""Is a student's kernel their own, does a GPU take it, and what does it move?"""

import sys
from contextlib import contextmanager

import torch

from kernelbook import compiled, interpreter, meter
from kernelbook._lab_answers import Refused, nothing_returned, watched
from kernelbook._lab_compare import first_right

TARGETS = (80, 90)
# Operations of PyTorch that only provide memory: a launcher may use them.
PROVIDES_MEMORY = {"empty", "empty_like", "empty_strided", "new_empty", "fill_", "zero_"}
PROVIDES_MEMORY |= {"zeros", "zeros_like", "new_zeros", "full", "full_like", "new_full"}


def count(fn, *args, **kwargs):
    """Counts of the meter for a function that must do its work in Triton kernels of its own."""
    with poisoned_memory(), watched():
        counts = meter.count(fn, *args, **kwargs)
    own_kernels(counts)
    if counts.result is None:
        raise AssertionError(nothing_returned(fn))
    return counts


@contextmanager
def poisoned_memory():
    """`torch.empty` gives NaN, so that an element that no kernel writes shows.

    Unlike `checks.poisoned_memory` this fills inside the allocation, where the meter does not
    count it as an operation of the student's.
    """
    before = torch.get_deterministic_debug_mode()
    # Not use_deterministic_algorithms: that imports the compiler of PyTorch, for two seconds.
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def own_kernels(counts) -> None:
    """Refuse answers that let PyTorch do the work."""
    others = [each for each in counts.operations if _name(each) not in PROVIDES_MEMORY]
    if others:
        named = ", ".join(map(_what_ran, others))
        raise Refused(f"the work belongs into your kernel, but PyTorch ran: {named}")
    if counts.waits:
        raise Refused(
            f"the data must stay on the device, but your code reads it: {counts.waits[0]}"
        )
    if not counts.kernels:
        raise Refused("no Triton kernel was launched: write and launch your own")


def _what_ran(operation) -> str:
    wrote = f"wrote {operation.written} bytes"
    if _name(operation) == "_to_copy":
        return (
            f"a conversion of dtype, such as .to() or .long() ({wrote}): create the output with "
            "the dtype that is asked for (int64, say), and the kernel's store converts"
        )
    return f"{_name(operation)} ({wrote})"


def _name(operation) -> str:
    return operation.name.removeprefix("aten::").removeprefix("aten.").split(".")[0]


# What a kernel moves earns points where the same call gave the right result: a kernel that
# merely copies moves little too.


def one_launch(counts) -> None:
    first_right(counts)
    if counts.launches != 1:
        names = ", ".join(kernel.name for kernel in counts.kernels)
        raise AssertionError(f"expected 1 launch, got {counts.launches}: {names}")


KEEP = "Keep what you loaded in a variable"


def reads_once(counts, nbytes: int, what: str = "the input", hint: str = KEEP) -> None:
    """All programs together ask for `nbytes` bytes, no element twice."""
    first_right(counts)
    times = counts.requested_read / nbytes
    if counts.requested_read > nbytes:
        raise AssertionError(
            f"{what} has {nbytes} bytes, the kernel's loads ask for {counts.requested_read}: "
            f"each element is read {times:.3g} times. {hint}"
        )
    if counts.requested_read < nbytes:
        raise AssertionError(
            f"{what} has {nbytes} bytes, the kernel's loads ask for {counts.requested_read} only: "
            "a part of it is never read"
        )


def reads_at_most(counts, nbytes: int, what: str = "the input") -> None:
    """All programs together ask for no more than `nbytes` bytes."""
    first_right(counts)
    if counts.requested_read > nbytes:
        reads_once(counts, nbytes, what)


def writes_once(counts, nbytes: int, what: str = "the output") -> None:
    """Kernels and operations together write `nbytes` bytes, no element twice."""
    first_right(counts)
    written = sum(operation.written for operation in counts.operations)
    if written:
        raise AssertionError(
            f"PyTorch wrote {written} bytes before the kernel did: torch.empty_like is enough for "
            "memory that the kernel fills"
        )
    if counts.requested_written != nbytes:
        raise AssertionError(
            f"{what} has {nbytes} bytes, the kernel's stores write {counts.requested_written}: "
            "store the result once, and nothing in between"
        )


def compiles(fn, *args, **kwargs) -> None:
    """Refuse kernels that are not the notebook's own, or that only the interpreter accepts.

    What `fn` launches is compiled offline for each of TARGETS.
    """
    with interpreter.capture_launches() as launches:
        fn(*args, **kwargs)
    files = _files_of_modules()
    for launch in launches:
        for name, file in _functions_of(launch):
            if file in files:
                raise Refused(f"{name} comes from {files[file]}: write your own in this notebook")
    for report in compiled.compile_captured(launches, TARGETS):
        if report.refusal:
            raise Refused(
                f"the interpreter ran {report.kernel}, but a GPU (sm_{report.target}) refuses it: "
                f"{report.refusal}"
            )


def _files_of_modules() -> dict[str, str]:
    """File -> module, of everything that was imported; a notebook's cells are no files."""
    modules = list(sys.modules.items())
    return {
        module.__file__: name
        for name, module in modules
        if name != "__main__" and getattr(module, "__file__", None)
    }


def _functions_of(launch) -> list[tuple[str, str]]:
    try:
        return _functions(launch.source)
    except (OSError, RecursionError):  # no source, or endless: the compiler refuses with the reason
        return []


def _functions(source) -> list[tuple[str, str]]:
    """(name, file) of a kernel and of all functions that it calls, from their code."""
    inner = [each for helper in source.functions.values() for each in _functions(helper)]
    return [(source.name, source.file), *inner]

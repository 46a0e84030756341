"""What the test cells of the labs use: points by parts, failures that explain themselves.

A test cell reads

    task = lab.Task("task 1", points=4)
    with task.part(2, "bytes of a prefill"):
        lab.equal(my_bytes(128), 4096, {2048: "the write is missing"})
    task.score()

A part that fails prints why and costs its own points; the others go on. `task.need` is a
condition without which nothing in the task counts.
"""

import os
import random
import traceback
from contextlib import contextmanager
from pathlib import Path

import torch

from kernelbook.checks import relative_error

TARGETS = (80, 90)
# Operations of PyTorch that only provide memory: a launcher may use them.
PROVIDES_MEMORY = {"empty", "empty_like", "empty_strided", "new_empty", "fill_", "zero_"}
PROVIDES_MEMORY |= {"zeros", "zeros_like", "new_zeros", "full", "full_like", "new_full"}


class Refused(AssertionError):
    """An answer that cannot earn the task, with the reason."""


def seed() -> str:
    """Seed of the hidden tests: KERNELBOOK_SEED, set by the instructor, or "public"."""
    return os.getenv("KERNELBOOK_SEED", "public")


class Task:
    """The points of one task: parts of it are earned one by one, `score` is the cell's value."""

    def __init__(self, name: str, points: float):
        self.name, self.points = name, points
        self.earned = self.tested = 0
        self.refusal: str | None = None
        self.failures: list[tuple[str, BaseException]] = []

    @contextmanager
    def part(self, points: float, title: str):
        """Earn `points` if the block raises nothing; print the failure otherwise."""
        self.tested += points
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as failure:
            self._failed(title, failure, f"0/{points:g}")
        else:
            self.earned += points
            print(f"✓ {points:g}/{points:g}  {title}")

    @contextmanager
    def need(self, title: str):
        """A condition of the whole task: if the block raises, the task earns nothing."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as failure:
            self.refusal = title
            self._failed(title, failure, "no points without this:")
        else:
            print(f"✓      {title}")

    def _failed(self, title: str, failure: BaseException, price: str) -> None:
        self.failures.append((title, failure))
        print(f"✗ {price}  {title}")
        for line in explain(failure).splitlines():
            print(f"       {line}")

    def draws(self, count: int) -> list[random.Random]:
        """Random generators for hidden tests, the same for every student of one seed."""
        return [random.Random(f"{seed()}/{self.name}/{index}") for index in range(count)]

    def score(self) -> float:
        """Points of the task, for the last line of its test cell."""
        earned = 0 if self.refusal else self.earned
        rest = self.points - self.tested
        hidden = f" ({rest:g} more are for other shapes, drawn when the lab is graded)"
        print(f"{self.name}: {earned:g} of {self.tested:g} points{hidden if rest else ''}")
        return earned


def explain(failure: BaseException) -> str:
    """A failure in the student's terms: what happened and in which line of theirs."""
    if isinstance(failure, NotImplementedError):
        return "not solved yet"
    if isinstance(failure, NameError):
        return f"{failure}: solve and run the cell above first"
    if isinstance(failure, AssertionError):
        return str(failure) or "a check failed"
    root = failure
    while root.__cause__ is not None:
        root = root.__cause__
    line = _students_line(failure)
    where = f"\nin the line: {line}" if line else ""
    return f"{type(root).__name__}: {root}{where}"


def _students_line(failure: BaseException) -> str | None:
    """The innermost line of the traceback that is neither a library's nor the test's own."""
    frames = traceback.extract_tb(failure.__traceback__)
    theirs = [frame for frame in frames[1:] if not Path(frame.filename).is_file()]
    return theirs[-1].line if theirs else None


def equal(got, want, mistakes: dict | None = None, what: str = "the result") -> None:
    """Compare numbers or strings; `mistakes` maps a typical wrong value to its explanation."""
    if got is None:
        raise AssertionError(f"{what}: the function returned None; is a `return` missing?")
    if got == want:
        return
    likely = (mistakes or {}).get(got)
    hint = f". Likely mistake: {likely}" if likely else ""
    raise AssertionError(f"{what}: expected {want!r}, got {got!r}{hint}")


def near(got, want, mistakes: dict | None = None, what: str = "the result") -> None:
    """`equal` for numbers with rounding errors: relative difference below 1e-6."""
    if got is not None and not isinstance(got, int | float):
        raise AssertionError(f"{what}: expected a number, got {got!r}")
    for value, explanation in {want: "", **(mistakes or {})}.items():
        if got is not None and abs(got - value) <= 1e-6 * abs(value):
            return equal(value, want, {value: explanation}, what)
    equal(got, want, what=what)


def tensor(draw: random.Random | int, *shape: int, dtype=torch.float32) -> torch.Tensor:
    """A normal random tensor on the CPU, from a seed or a generator of `Task.draws`."""
    number = draw if isinstance(draw, int) else draw.randrange(2**31)
    return torch.randn(*shape, generator=torch.Generator().manual_seed(number)).to(dtype)


def close(got, want, tolerance: float, hint: str = "") -> None:
    """Compare a tensor with the reference by relative error; name the worst element."""
    if not isinstance(got, torch.Tensor):
        raise AssertionError(f"expected a tensor, got {type(got).__name__}; is a `return` missing?")
    if got.shape != want.shape:
        raise AssertionError(f"expected shape {list(want.shape)}, got {list(got.shape)}")
    got, want = got.double(), want.double()
    if relative_error(got, want) <= tolerance:
        return
    wrong = ~torch.isclose(got, want, rtol=tolerance, atol=tolerance * want.abs().max().item())
    first = [int(index) for index in wrong.nonzero()[0]] if wrong.any() else [0] * got.ndim
    at = tuple(first)
    text = (
        f"shape {list(want.shape)}: {int(wrong.sum())} of {wrong.numel()} elements are wrong; "
        f"the first is {first}: expected {want[at].item():.4g}, got {got[at].item():.4g}"
    )
    raise AssertionError(f"{text}. {hint}" if hint else text)


def count(fn, *args, **kwargs):
    """Counts of the meter for a function that must do its work in Triton kernels of its own."""
    from kernelbook import meter

    with poisoned_memory():
        counts = meter.count(fn, *args, **kwargs)
    own_kernels(counts)
    return counts


@contextmanager
def poisoned_memory():
    """`torch.empty` gives NaN, so that an element that no kernel writes shows.

    Unlike `checks.poisoned_memory` this fills inside the allocation, where the meter does not
    count it as an operation of the student's.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def own_kernels(counts) -> None:
    """Refuse answers that let PyTorch do the work."""
    others = [each for each in counts.operations if _name(each) not in PROVIDES_MEMORY]
    if others:
        named = ", ".join(f"{_name(each)} (wrote {each.written} bytes)" for each in others)
        raise Refused(f"the work belongs into your kernel, but PyTorch ran: {named}")
    if not counts.kernels:
        raise Refused("no Triton kernel was launched: write and launch your own")


def _name(operation) -> str:
    return operation.name.removeprefix("aten::").removeprefix("aten.").split(".")[0]


def one_launch(counts) -> None:
    if counts.launches != 1:
        names = ", ".join(kernel.name for kernel in counts.kernels)
        raise AssertionError(f"expected 1 launch, got {counts.launches}: {names}")


def reads_once(counts, nbytes: int, what: str = "the input") -> None:
    """All programs together ask for `nbytes` bytes, no element twice."""
    times = counts.requested_read / nbytes
    if counts.requested_read > nbytes:
        raise AssertionError(
            f"{what} has {nbytes} bytes, the kernel's loads ask for {counts.requested_read}: "
            f"each element is read {times:.3g} times. Keep what you loaded in a variable"
        )
    if counts.requested_read < nbytes:
        raise AssertionError(
            f"{what} has {nbytes} bytes, the kernel's loads ask for {counts.requested_read} only: "
            "a part of it is never read"
        )


def reads_at_most(counts, nbytes: int, what: str = "the input") -> None:
    """All programs together ask for no more than `nbytes` bytes."""
    if counts.requested_read > nbytes:
        reads_once(counts, nbytes, what)


def writes_once(counts, nbytes: int, what: str = "the output") -> None:
    """Kernels and operations together write `nbytes` bytes, no element twice."""
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
    """Refuse kernels that only the interpreter accepts: compile what `fn` launches, offline."""
    from kernelbook import compiled

    reports = compiled.compile_launches(lambda: fn(*args, **kwargs), targets=TARGETS)
    for report in reports:
        if report.refusal:
            raise Refused(
                f"the interpreter ran {report.kernel}, but a GPU (sm_{report.target}) refuses it: "
                f"{report.refusal}"
            )


def time_on_gpu(shape: tuple[int, ...], **functions) -> None:
    """Print the time of functions of one tensor side by side; never graded, never fails."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing is timed, and nothing is missing for your grade")
        return
    from kernelbook import timing

    try:
        x = torch.randn(*shape, device="cuda")
        bound = {
            name: lambda function=function: function(x) for name, function in functions.items()
        }
        for name, result in timing.side_by_side(bound).items():
            print(f"{name:10} {result.median_us:10.1f} µs")
    except Exception as failure:
        print(f"not timed: {explain(failure)}")

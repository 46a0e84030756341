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
import textwrap
import traceback
from contextlib import contextmanager
from pathlib import Path

import torch

from kernelbook._lab_kernels import (
    Refused,
    compiles,
    count,
    one_launch,
    own_kernels,
    reads_at_most,
    reads_once,
    writes_once,
)
from kernelbook.checks import relative_error

__all__ = [
    "Refused",
    "Task",
    "close",
    "compiles",
    "count",
    "equal",
    "explain",
    "near",
    "one_launch",
    "own_kernels",
    "reads_at_most",
    "reads_once",
    "seed",
    "tensor",
    "time_on_gpu",
    "writes_once",
]


INDENT = " " * 7


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
            if not self.refusal:
                print(f"✓ {points:g}/{points:g}  {title}")

    @contextmanager
    def need(self, title: str):
        """A condition of the whole task: if the block raises, the task earns nothing."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as failure:
            self.refusal = self.refusal or title
            self._failed(title, failure, "no points without this:")
        else:
            if not self.refusal:
                print(f"✓      {title}")

    def _failed(self, title: str, failure: BaseException, price: str) -> None:
        if self.refusal not in (None, title):
            return  # one reason is enough
        self.failures.append((title, failure))
        print(f"✗ {price}  {title}")
        for line in explain(failure).splitlines():
            print(textwrap.fill(line, 100, initial_indent=INDENT, subsequent_indent=INDENT))

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
    while root.__cause__ is not None:  # Triton's interpreter wraps what a kernel raises
        root = root.__cause__
    line = _students_line(failure)
    where = f"\nin the line: {line}" if line else ""
    return f"{type(root).__name__}: {root}{where}"


def _students_line(failure: BaseException) -> str | None:
    """The innermost line of the traceback that is neither a library's nor the test's own.

    Cells are no files; the first cell in a traceback is the test's.
    """
    frames = traceback.extract_tb(failure.__traceback__)
    cells = [frame for frame in frames if not Path(frame.filename).is_file()]
    theirs = [frame for frame in cells if frame.filename != cells[0].filename]
    return theirs[-1].line if theirs else None


def equal(got, want, mistakes: dict | None = None, what: str = "the result") -> None:
    """Compare numbers or strings; `mistakes` maps a typical wrong value to its explanation."""
    if got is None:
        raise AssertionError(f"{what}: the function returned None; is a `return` missing?")
    if got == want:
        return
    known = (mistakes or {}).items()
    likely = next((explanation for value, explanation in known if value == got), None)
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

"""What the test cells of the labs use: points by parts, failures that explain themselves.

A test cell reads

    task = lab.Task("task 1", points=4)
    with task.part(2, "bytes of a prefill"):
        lab.equal(my_bytes(128), 4096, {2048: "the write is missing"})
    task.score()

A part that fails prints why and costs its own points; the others go on. `task.need` is a
condition without which nothing in the task counts. Answers are called by `count`, `compiles` or
`ask`, which see what they do. Checks of what a kernel moves count where `close` or `same` found the
result of the same call right; `first_right` says so for checks of a lab's own.
"""

import os
import random
import sys
import textwrap
from contextlib import contextmanager

import torch

from kernelbook import _lab_integrity
from kernelbook._lab_answers import Refused, ask
from kernelbook._lab_compare import close, equal, first_right, near, same
from kernelbook._lab_integrity import given
from kernelbook._lab_kernels import (
    compiles,
    count,
    one_launch,
    own_kernels,
    reads_at_most,
    reads_once,
    writes_once,
)
from kernelbook._lab_reasons import explain

__all__ = [
    "Refused",
    "Task",
    "ask",
    "close",
    "compiles",
    "count",
    "equal",
    "explain",
    "first_right",
    "given",
    "near",
    "one_launch",
    "own_kernels",
    "reads_at_most",
    "reads_once",
    "same",
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
        self.passed: set[str] = set()
        self.refusal: str | None = None
        self.failures: list[tuple[str, BaseException]] = []
        self._trust(sys._getframe(1).f_globals)

    def _trust(self, notebook: dict) -> None:
        """Refused where points would no longer come from the course's own functions."""
        for name in _lab_integrity.changed():
            raise Refused(_lab_integrity.CHANGED.format(name))
        for name in _lab_integrity.renamed(notebook):
            raise Refused(_lab_integrity.RENAMED.format(name))

    @contextmanager
    def part(self, points: float, title: str, after: str | None = None):
        """Earn `points` if the block raises nothing; print the failure otherwise.

        after  title of a part without which this one earns nothing
        """
        self.tested += points
        try:
            yield
            if after and after not in self.passed:
                raise AssertionError(f"this counts after the part: {after}")
        except KeyboardInterrupt:
            raise
        except BaseException as failure:
            self._failed(title, failure, f"0/{points:g}")
        else:
            self.earned += points
            self.passed.add(title)
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
        self._trust({})
        earned = 0 if self.refusal else self.earned
        rest = self.points - self.tested
        hidden = f" ({rest:g} more are for other shapes, drawn when the lab is graded)"
        print(f"{self.name}: {earned:g} of {self.tested:g} points{hidden if rest else ''}")
        return earned


def tensor(draw: random.Random | int, *shape: int, dtype=torch.float32) -> torch.Tensor:
    """A normal random tensor on the CPU, from a seed or a generator of `Task.draws`."""
    number = draw if isinstance(draw, int) else draw.randrange(2**31)
    return torch.randn(*shape, generator=torch.Generator().manual_seed(number)).to(dtype)


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


_lab_integrity.keep(sys.modules[__name__])

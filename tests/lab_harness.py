"""Running labs and wrong answers fast, in one warm process; nbgrader whole runs elsewhere.

A LAB is solutions/labNN_name/labNN_name.ipynb, without outputs. Its cells, by nbgrader id:
  labNN_setup        locked: `from kernelbook import lab, ...` (kernelbook before triton; the only
                     cell that may take longer than 10 s)
  labNN_imports      locked: torch, triton
  labNN_taskK_spec   locked: the plain reference function, if any (any other locked id will do);
                     `@lab.given` on what the tests call, so that an answer cannot replace it
  labNN_taskK        solution: between `### BEGIN SOLUTION` and `### END SOLUTION`; for a kernel
                     the region holds all of it, decorator included
  labNN_taskK_test   grade, locked, with points. It starts with `from kernelbook import lab`, builds
                     `task = lab.Task("task K", points=P)`, calls answers by `lab.count`,
                     `lab.compiles` or `lab.ask` alone (so that reasons name the student's line),
                     earns parts (points for wastes count where `lab.close` or `lab.same` found
                     the same call's result right; literal cases are worth little, drawn ones the
                     rest), has `### BEGIN HIDDEN TESTS` ... `### END HIDDEN TESTS` around
                     those drawn from `task.draws(n)`, and ends with `task.score()`. The parts of
                     the solution must add up to P. Later tasks' tests use references, never an
                     earlier answer. See kernelbook/lab.py for the checks.
Run `make labs` afterwards; labs/ is never edited. tests/test_labs.py finds new labs by itself.

A WRONG ANSWER is tests/wrong_answers/labNN_name/what_is_wrong.py; its text replaces the answer.
It starts with a docstring: one sentence, then

    cell: lab02_task3             the answer it replaces
    points: 6                     what the cell <cell>_test then earns, below its full points
    says: subtract the maximum    a fragment of what that test prints
    error: AccessError            only where the mistake is meant to end in an exception

It imports what it uses, so that it is a module that a linter understands. It must run without
an exception, fail its own test as a wrong number (unless `error` is given), and earn full points
in every other task.

A FAULT is planted with `plant(source, old, new)`, which insists that it changes one place.
"""

import ast
import contextlib
import io
import itertools
import linecache
import os
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
SOLUTIONS = ROOT / "solutions"
WRONG_ANSWERS = ROOT / "tests" / "wrong_answers"
_numbers = itertools.count()


@dataclass
class Outcome:
    """What a run of a lab's code cells gave, by nbgrader id."""

    points: dict[str, float] = field(default_factory=dict)
    out_of: dict[str, float] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)
    tasks: dict = field(default_factory=dict)

    @property
    def lost(self) -> dict[str, float]:
        """Points missing, for the tests that miss any."""
        missing = {name: self.out_of[name] - points for name, points in self.points.items()}
        return {name: points for name, points in missing.items() if points}


@dataclass
class WrongAnswer:
    """A file of tests/wrong_answers, its header read."""

    path: Path
    lab: str
    cell: str
    points: float
    says: str
    error: str | None
    source: str

    @property
    def test(self) -> str:
        return f"{self.cell}_test"


def labs(solutions: Path = SOLUTIONS) -> list[str]:
    return sorted(path.parent.name for path in solutions.glob("*/*.ipynb"))


def notebook(lab: str, folder: Path = SOLUTIONS) -> nbformat.NotebookNode:
    return nbformat.read(folder / lab / f"{lab}.ipynb", as_version=4)


def answers(lab: str) -> dict[str, str]:
    """The solution's answer cells by id."""
    cells = [cell for cell in notebook(lab).cells if "nbgrader" in cell.metadata]
    answered = [cell for cell in cells if cell.metadata.nbgrader.solution]
    return {cell.metadata.nbgrader.grade_id: cell.source for cell in answered}


def points(lab: str) -> dict[str, float]:
    """Full points of each test cell by id, in order."""
    graders = [cell.metadata.get("nbgrader", {}) for cell in notebook(lab).cells]
    return {grader.grade_id: grader.points for grader in graders if grader.get("grade")}


def wrong_answers(lab: str = "*") -> list[WrongAnswer]:
    return [read_wrong_answer(path) for path in sorted(WRONG_ANSWERS.glob(f"{lab}/*.py"))]


def read_wrong_answer(path: Path) -> WrongAnswer:
    source = path.read_text()
    lines = (ast.get_docstring(ast.parse(source)) or "").splitlines()
    header = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    unknown = header.keys() - {"cell", "points", "says", "error"}
    assert not unknown, f"{path}: unknown header lines {sorted(unknown)}"
    cell, points, says = header["cell"], float(header["points"]), header["says"]
    return WrongAnswer(path, path.parent.name, cell, points, says, header.get("error"), source)


def plant(source: str, old: str, new: str) -> str:
    """`source` with a fault in exactly one place."""
    assert source.count(old) == 1, f"{old!r} is there {source.count(old)} times, not once"
    return source.replace(old, new)


def run(lab: str, replace: dict[str, str] | None = None, seed: str = "tests") -> Outcome:
    """Run the instructor's version, hidden tests included, with some answer cells replaced."""
    replace = dict(replace or {})
    outcome, namespace = Outcome(), {"__name__": "__main__"}
    os.environ["KERNELBOOK_SEED"] = seed
    for cell in notebook(lab).cells:
        if cell.cell_type == "code":
            grader = cell.metadata.get("nbgrader", {})
            name = grader.get("grade_id", f"unnamed cell {cell.id}")
            _run_cell(replace.pop(name, cell.source), name, grader, namespace, outcome)
    assert not replace, f"{lab} has no cell {sorted(replace)}"
    return outcome


def _run_cell(source: str, name: str, grader: dict, namespace: dict, outcome: Outcome) -> None:
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        try:
            value = execute(source, namespace)
        except BaseException as error:
            outcome.errors[name] = error
    outcome.printed[name] = printed.getvalue()
    if grader.get("grade"):
        outcome.out_of[name] = grader["points"]
        outcome.points[name] = _points(value, grader["points"], name in outcome.errors)
        outcome.tasks[name] = namespace.get("task")


def _points(value, most: float, failed: bool) -> float:
    """As `make grade` counts: an error or no number is 0, else the cell's value."""
    if failed or not isinstance(value, int | float):
        return 0.0
    assert 0 <= value <= most, f"{value} of {most} points"
    return float(value)


def execute(source: str, namespace: dict):
    """Run a cell; the value of its last expression. Triton finds the source as in Jupyter."""
    filename = f"<lab cell {next(_numbers)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    tree = ast.parse(source, filename)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, filename, "exec"), namespace)
    if last is not None:
        return eval(compile(ast.Expression(last.value), filename, "eval"), namespace)
    return None

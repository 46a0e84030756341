"""A failure in the student's terms: what happened, and in which line of theirs."""

import traceback
from pathlib import Path

from kernelbook import _lab_answers, _lab_kernels

# An answer's own frames come behind the frame that calls it.
CALLERS = {
    function.__code__ for function in (_lab_answers.ask, _lab_kernels.count, _lab_kernels.compiles)
}


def explain(failure: BaseException) -> str:
    """What happened, in a sentence, and the student's line."""
    if isinstance(failure, NotImplementedError):
        return "not solved yet"
    lines, inside = _students_lines(failure)
    where = f"\nin the line: {lines[-1]}" if lines else ""
    if isinstance(failure, NameError) and not lines:
        return f"{failure}: solve and run the cell above first"
    if isinstance(failure, AssertionError):
        own = f"an assert of yours failed: {failure}".rstrip(": ")
        return (own if inside else str(failure) or "a check failed") + where
    root = failure
    while root.__cause__ is not None:  # Triton's interpreter wraps what a kernel raises
        root = root.__cause__
    return f"{type(root).__name__}: {root}{where}"


def _students_lines(failure: BaseException) -> tuple[list[str], bool]:
    """The answer's lines in the traceback, outermost first; whether the last of all is theirs.

    Cells are no files. What a test's own cell raises, or a helper of the lab, has no such line.
    """
    steps = list(traceback.walk_tb(failure.__traceback__))
    frames = traceback.StackSummary.extract(iter(steps))
    called = [at for at, (frame, _) in enumerate(steps) if frame.f_code in CALLERS]
    if not called:
        return [], False
    theirs = [not Path(frame.filename).is_file() for frame in frames]
    mine = range(called[0], len(frames))
    return [frames[at].line for at in mine if theirs[at]], theirs[-1]

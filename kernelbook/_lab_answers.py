"""Calling a student's answer, so that what it does is seen and what it gives is there."""

import sys
import threading
from contextlib import contextmanager
from unittest import mock

from torch.utils import _python_dispatch

from kernelbook import meter

BACKGROUND = {
    "os.fork": "starts a process",
    "os.posix_spawn": "starts a process",
    "subprocess.Popen": "starts a process",
}
_running: list[int] = []  # threads that run an answer
_start = threading.Thread.start


class Refused(AssertionError):
    """An answer that cannot earn the task, with the reason."""


def ask(fn, *args, values: int = 1, kind: type | None = None, optional: bool = False):
    """`fn(*args)`, for tasks without a kernel.

    AssertionError where it is None (unless `optional`), not `values` values or not of type `kind`.
    The meter does not run inside: its counts are what such an answer has to find out.
    """
    with watched(), meter.closed("an answer is computed from the arguments, not by the meter"):
        got = fn(*args)
    if got is None and not optional:
        raise AssertionError(nothing_returned(fn))
    if values > 1 and (type(got) not in (tuple, list) or len(got) != values):
        raise AssertionError(f"{_name(fn)} returns {values} values, got {_described(got)}")
    if kind and type(got) is not kind:
        raise AssertionError(f"{_name(fn)} returns a {kind.__name__}, got {_described(got)}")
    return got


def nothing_returned(fn) -> str:
    return f"{_name(fn)} returned None: is the `return` missing?"


def _name(fn) -> str:
    return getattr(fn, "__name__", "the function")


def _described(got) -> str:
    return f"{len(got)}" if type(got) in (tuple, list) else f"one {type(got).__name__}"


@contextmanager
def watched():
    """An answer does its work here and now, where the meter sees it."""
    seen = _python_dispatch._disable_current_modes.__wrapped__
    before = seen.__code__
    seen.__code__ = _hides.__code__  # also where the answer took the function out of its module
    _running.append(threading.get_ident())
    try:
        with mock.patch.object(threading.Thread, "start", _start_thread):
            yield
    finally:
        _running.pop()
        seen.__code__ = before


def _hides():
    from kernelbook._lab_answers import Refused  # it runs with the globals of another module

    raise Refused("this answer hides PyTorch operations from the meter")
    yield


def _start_thread(thread) -> None:
    _refuse("starts a thread")
    _start(thread)


def _refuse(what: str) -> None:
    """Jupyter's own threads may go on."""
    if threading.get_ident() in _running:
        raise Refused(f"this answer {what}, where the meter does not see its work")


def _in_background(event: str, _) -> None:
    if _running and event in BACKGROUND:
        _refuse(BACKGROUND[event])


sys.addaudithook(_in_background)

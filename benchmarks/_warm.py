"""Compile what several calls launch, each kernel in a process of its own, before any of them runs.

A benchmark of many tiles spends minutes compiling, one kernel after another; Triton's compiler
holds Python's lock, so threads do not help. Children fill Triton's cache on disk, and the parent
finds everything there.
"""

import contextlib
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future

import triton
from triton.runtime.jit import JITFunction

from kernelbook import backend

PATIENCE_S = 60  # for one kernel; after it the parent compiles it itself


class Children(Executor):
    """`submit` forks a child that runs the function for its effects; `finish` runs it here, too."""

    def __init__(self, most: int | None = None):
        self.most = most or os.cpu_count() or 1
        self.running: dict[int, float] = {}  # process -> when it is given up
        self.jobs: list[tuple[Callable, Future]] = []

    def submit(self, function, /, *args, **kwargs) -> Future:
        while len(self.running) >= self.most:
            self._reap()
        with warnings.catch_warnings():  # a fork is safe here: the child only compiles, then leaves
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                function(*args, **kwargs)
            os._exit(0)
        self.running[child] = time.monotonic() + PATIENCE_S
        future: Future = Future()
        self.jobs.append((function, future))
        return future

    def _reap(self) -> None:
        """Take leave of children that are done, or are taking too long."""
        for child, until in list(self.running.items()):
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            elif os.waitpid(child, os.WNOHANG)[0] == 0:
                continue
            del self.running[child]
        time.sleep(0.01)

    def finish(self) -> None:
        """Wait for the children and resolve every future, from the cache that they filled."""
        while self.running:
            self._reap()
        for function, future in self.jobs:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)


RUN = JITFunction.run


def is_compiling() -> bool:
    """Whether launches are only compiled now: what compiles by itself had better not run."""
    return JITFunction.run is not RUN


@contextlib.contextmanager
def compiling():
    """Within it, launches of Triton kernels are compiled, all at once, and none of them runs."""
    children, run = Children(), JITFunction.run

    def compile_only(self, *args, grid, warmup=False, **kwargs):
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    with triton.AsyncCompileMode(children, ignore_errors=True):
        JITFunction.run = compile_only
        try:
            yield
        finally:
            JITFunction.run = run
            children.finish()


def compile_all(calls: Iterable[Callable], *inputs) -> None:
    """Compile what the calls launch; their results are rubbish, their errors come again later."""
    if not backend.GPU:
        return
    with compiling():
        for call in calls:
            with contextlib.suppress(Exception):
                call(*inputs)

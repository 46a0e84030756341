"""Kernels of several calls are compiled in processes of their own, before any runs."""

import os
import subprocess
import sys
import time

from benchmarks import _warm

COMPILES = """
import torch
torch.cuda.is_available = lambda: True
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
class NoGpu:  # enough to compile for one
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device=None): return 0
driver.set_active(NoGpu())
import kernelbook
from kernelbook import interpreter
from kernelbook.kernels import row_sum
from triton.runtime.jit import JITFunction
from benchmarks import _warm
interpreter._interpreted = lambda *_: False
before, x = JITFunction.run, torch.ones(4, 64)
def fails(x): raise ValueError
_warm.compile_all([row_sum.row_sum, fails, lambda x: row_sum.row_sum(x.half())], x)
assert JITFunction.run is before
kept = [type(k).__name__ for caches in row_sum.row_sum_kernel.device_caches.values()
        for k in caches[0].values()]
print(kept)
"""


def test_compiled_kernels_lie_in_the_cache_and_none_ran(tmp_path):
    """A driver that can only compile: a launch would fail."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", COMPILES],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.stdout.split() == ["['CompiledKernel',", "'CompiledKernel']"], done.stderr
    assert len(list(tmp_path.rglob("*.cubin"))) == 2


def test_children_run_first_and_the_parent_afterwards(tmp_path):
    def note():
        with open(tmp_path / "who", "a") as file:
            file.write(f"{os.getpid()}\n")
        return 7

    children = _warm.Children(most=1)
    futures = [children.submit(note) for _ in range(2)]
    children.finish()
    who = (tmp_path / "who").read_text().split()
    assert [future.result() for future in futures] == [7, 7]
    assert who[2:] == [str(os.getpid())] * 2 and len(set(who)) == 3


def test_a_child_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(_warm, "PATIENCE_S", 0.2)
    parent = os.getpid()
    children, began = _warm.Children(), time.monotonic()
    future = children.submit(lambda: time.sleep(60) if os.getpid() != parent else "done")
    children.finish()
    assert future.result() == "done" and time.monotonic() - began < 10


def test_an_error_comes_back_with_the_result():
    def fails():
        raise ValueError("no such tile")

    children = _warm.Children()
    future = children.submit(fails)
    children.finish()
    assert str(future.exception()) == "no such tile"

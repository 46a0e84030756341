"""Students' kernels: closures, helpers, autotuning, CPU tensors beside a GPU, libdevice."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from interpreted import add, tuned_add
from triton.language.extra import libdevice


def test_kernel_and_helper_defined_in_a_function():
    shift = tl.constexpr(3)

    @triton.jit
    def helper(x):
        y = x * 2
        return y + shift

    @triton.jit
    def kernel(x, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(x + i, helper(tl.load(x + i)))

    before = set(globals())
    x = torch.arange(16.0)
    kernel[(1,)](x, BLOCK=16)
    assert torch.equal(x, torch.arange(16.0) * 2 + 3)
    assert set(globals()) == before  # Triton's own rewriting leaves its names here


def test_a_misspelled_argument_is_an_error():
    x, y, out = torch.ones(3, 16)
    with pytest.raises(TypeError, match=r"no parameter.*BLOK"):
        add[(1,)](x, y, out, 16, BLOCK=16, BLOK=2)
    with pytest.raises(TypeError, match="kernel add missing 1 required positional argument: 'n'"):
        add[(1,)](x, y, out, BLOCK=16)


def test_autotuners_take_one_configuration(capfd):
    x, y, out = torch.ones(3, 100)
    tuned_add[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, y, out, 100)
    assert (out == 2).all()
    assert tuned_add.best_config.kwargs == {"BLOCK": 64}
    assert capfd.readouterr() == ("", "")


heuristic_add = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(add)


def test_heuristics():
    x, y, out = torch.ones(3, 100)
    heuristic_add[(1,)](x, y, out, 100)
    assert (out == 2).all()


def test_compiled_kernels_with_cpu_tensors_are_interpreted(tmp_path):
    """As on a machine with a GPU: Triton imported without its interpreter."""
    script = tmp_path / "gpu_machine.py"
    script.write_text(
        textwrap.dedent("""
        import torch
        torch.cuda.is_available = lambda: True
        from kernelbook import backend, interpreter
        import triton, triton.language as tl
        from triton.runtime.jit import JITFunction

        load = tl.load

        @triton.jit
        def twice(x):
            y = x * 2
            return y

        @triton.jit
        def kernel(x, n, BLOCK: tl.constexpr):
            i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            v = tl.load(x + i, mask=i < n, other=0.0)
            tl.store(x + i, twice(v) + tl.sum(v) + tl.cdiv(n, BLOCK), mask=i < n)

        assert backend.GPU and type(kernel) is JITFunction and type(twice) is JITFunction
        tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (32, 64)], key=["n"])(kernel)
        chosen = triton.heuristics({"BLOCK": lambda args: 32})(kernel)
        x = torch.ones(20, dtype=torch.bfloat16)
        for launch in (lambda: kernel[(1,)](x, 20, BLOCK=32), lambda: tuned[(1,)](x, 20),
                       lambda: chosen[(1,)](x, 20)):
            x.fill_(1)
            launch()
            assert (x == 23).all(), x
        try:
            kernel[(2,)](x, 40, BLOCK=32)
        except interpreter.AccessError as error:
            print(error)
        assert tl.load is load and tl.core.is_builtin(tl.load), "the language was not restored"
        try:
            twice(1)
        except RuntimeError as error:
            print(error)
        from triton.backends.compiler import GPUTarget
        source = triton.compiler.ASTSource(kernel, {"x": "*bf16", "n": "i32", "BLOCK": "constexpr"},
                                           {"BLOCK": 32})
        print(triton.compile(source, target=GPUTarget("cuda", 90, 32)).metadata.num_warps)
        """)
    )
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    outside, called_outside, warps = done.stdout.splitlines()
    assert "load of x at element 20" in outside and warps == "4"
    assert called_outside == "Cannot call @triton.jit'd outside of the scope of a kernel"


@triton.jit
def library_exp_kernel(x, out):
    at = tl.arange(0, 16)
    tl.store(out + at, libdevice.exp(tl.load(x + at)))


exp_of_the_library = libdevice.exp


@triton.jit
def direct_exp_kernel(x, out):
    at = tl.arange(0, 16)
    tl.store(out + at, exp_of_the_library(tl.load(x + at)))


@pytest.mark.parametrize("kernel", [library_exp_kernel, direct_exp_kernel])
def test_libdevice_is_refused_in_words(kernel):
    with pytest.raises(TypeError, match="libdevice exists on a GPU alone"):
        kernel[(1,)](torch.ones(16), torch.ones(16))

"""Whole callables: kernels and operations in order, arguments untouched, errors, the table."""

import functools
import os
import subprocess
import sys
import textwrap
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from metered import add, add_kernel, matmul, mixed, tiled_attention

from kernelbook import interpreter, meter


def test_mixed_callables_in_order():
    counts = meter.count(mixed, torch.randn(1000), torch.randn(1000))
    assert [event.name for event in counts.events] == [
        "add_kernel",
        "mul",
        "softmax_kernel",
        "isnan",
        "any",
        "add_kernel",
    ]
    assert counts.launches == 3 and counts.programs == 4 + 10 + 4
    assert counts.waits == ["bool in mixed: if z.isnan().any():"]
    assert counts.read == 8000 + 4000 + 4000 + 4000 + 1000 + 8000
    assert counts.written == 4000 * 3 + 1000 + 1 + 4000
    assert counts.requested == counts.bytes == counts.sectors
    again = meter.count(mixed, torch.randn(1000), torch.randn(1000))
    assert again.events == counts.events


def test_arguments_stay_as_they_are():
    x, nested = torch.zeros(8), {"cache": [torch.zeros(2, 8)]}
    nested["view"] = nested["cache"][0][1]
    layer = torch.nn.Linear(8, 8)
    before = layer.weight.detach().clone()

    def change(x, nested, layer):
        x.add_(1)
        nested["view"].add_(1)
        layer.weight.data.zero_()
        return nested["cache"][0].sum()

    counts = meter.count(change, x, nested, layer=layer)
    assert counts.result == 8  # the view is still a view of its cache
    assert x.sum() == 0 and nested["cache"][0].sum() == 0 and torch.equal(layer.weight, before)


def test_modules_methods_and_partials():
    layer, x = torch.nn.Linear(8, 4), torch.randn(2, 8)
    flops = 2 * 2 * 8 * 4
    for fn in (layer, layer.forward, functools.partial(torch.nn.functional.linear, weight=x)):
        counts = meter.count(fn, x)
        assert counts.operations[0].name in ("addmm", "mm")
    assert meter.count(layer, x).flops == flops
    assert not hasattr(layer, "_kernelbook_host")


def test_tensors_elsewhere_are_named():
    elsewhere = torch.ones(4, device="meta")

    def closing(x):
        return x + elsewhere

    with pytest.raises(ValueError, match=r"closing uses `elsewhere`, which is on meta"):
        meter.count(closing, torch.ones(4))
    holder = type("Holder", (), {"weight": elsewhere})

    def hidden(x):
        return x + holder.weight

    with pytest.raises(ValueError, match="add met a tensor on meta"):
        meter.count(hidden, torch.ones(4))


def test_errors_leave_nothing_behind():
    def fails(x):
        add_kernel[(1,)](x, x, x, 1000, BLOCK=256)

    with pytest.raises(interpreter.AccessError):
        meter.count(fails, torch.ones(10))
    synchronize = torch.cuda.synchronize
    assert meter.count(add, torch.ones(10), torch.ones(10)).launches == 1
    assert torch.cuda.synchronize is synchronize and interpreter._observers == []


def test_totals_are_integers_of_exact_fractions():
    counts = meter.count(matmul, torch.ones(64, 64).half(), torch.ones(64, 64).half())
    totals = [counts.read, counts.written, counts.bytes, counts.requested, counts.sectors]
    totals += [counts.flops, counts.programs, counts.launches, counts.waits_count]
    assert all(type(total) is int for total in totals)
    assert Fraction(counts.flops, counts.bytes) == Fraction(2 * 64**3, 3 * 64 * 64 * 2)


def test_table():
    counts = meter.count(mixed, torch.ones(1000), torch.ones(1000))
    assert counts.table(sms=8).splitlines() == [
        "trips to HBM, bytes   read  written  requested  FLOPs  FLOPs per byte",
        "add_kernel            8000     4000      12000   1024            1/12",
        "mul                   4000     4000       8000   1000             1/8",
        "softmax_kernel        4000     4000       8000   6400               1",
        "isnan                 4000     1000       5000      0               0",
        "any                   1000        1       1001      0               0",
        "add_kernel            8000     4000      12000   1024            1/12",
        "total                29000    17001      46001   9448             1/5",
        "idle SMs, of 8",
        "  add_kernel: 4 programs, 4 SMs without one",
        "  softmax_kernel: 10 programs: 1 full wave and 2 more, 6 SMs idle at the end",
        "  add_kernel: 4 programs, 4 SMs without one",
        "launches: 3 Triton kernels, 3 PyTorch operations",
        "waits: 1",
        "  bool in mixed: if z.isnan().any():",
    ]


def test_counts_are_the_same_on_a_machine_with_a_gpu():
    """There, kernels are decorated to be compiled, and CPU tensors send them to the interpreter."""
    script = """
        import torch
        torch.cuda.is_available = lambda: True
        import metered
        from kernelbook import backend, meter
        from triton.runtime.jit import JITFunction
        assert backend.GPU and type(metered.add_kernel) is JITFunction
        x = torch.ones(1000)
        print(meter.count(metered.mixed, x, x))
        print(meter.count(metered.tiled_attention, *torch.ones(3, 1, 128, 64)))
    """
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    x = torch.ones(1000)
    here = [meter.count(mixed, x, x), meter.count(tiled_attention, *torch.ones(3, 1, 128, 64))]
    assert done.stdout == "".join(f"{counts}\n" for counts in here)

"""Observers see what a kernel touches; captured launches hold what the compiler needs."""

import torch
import triton
import triton.language as tl
from interpreted import add, tuned_add
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelbook import interpreter


class Log:
    def __init__(self):
        self.lines = []

    def launch(self, kernel, grid, tensors):
        self.lines.append((kernel, grid, sorted(tensors)))

    def access(self, kind, argument, offsets, itemsize):
        self.lines.append((kind, argument, offsets.tolist(), itemsize))

    def dot(self, m, n, k):
        self.lines.append(("dot", m, n, k))

    def arithmetic(self, elements, operation):
        self.lines.append((operation, elements))


def test_observers_see_active_lanes_in_order():
    x, y, out = torch.ones(3, 6).half()
    with interpreter.observe(Log()) as log:
        add[(2,)](x, y, out, 6, BLOCK=4)
    first, last = [0, 1, 2, 3], [4, 5]
    assert log.lines == [
        ("add", (2, 1, 1), ["out", "x", "y"]),
        ("load", "x", first, 2),
        ("load", "y", first, 2),
        ("add", 4),
        ("store", "out", first, 2),
        ("load", "x", last, 2),
        ("load", "y", last, 2),
        ("add", 4),
        ("store", "out", last, 2),
    ]
    add[(2,)](x, y, out, 6, BLOCK=4)
    assert len(log.lines) == 9


@triton.jit
def helper_of_captured(x):
    return x + OFFSET


OFFSET = tl.constexpr(7)


@triton.jit
def captured(x, tile, n, one, scale, nothing, BLOCK: tl.constexpr, FUNCTION: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, helper_of_captured(tl.load(x + i, mask=i < n)) * scale, mask=i < n)


def test_capture_records_what_the_compiler_needs():
    x = torch.ones(64, 64)
    tile = TensorDescriptor.from_tensor(x.bfloat16(), [16, 64])
    with interpreter.capture_launches() as launches:
        grid = lambda meta: (meta["n"] // meta["BLOCK"], 2)  # noqa: E731
        captured[grid](x, tile, 64, 1, 0.5, None, 16, helper_of_captured, num_warps=8)
        captured[(1,)](x.view(-1)[1:], tile, 7, 3, 0.5, x, BLOCK=16, FUNCTION="relu", num_stages=2)
    assert (x == 1).all()
    first, second = launches
    assert first.kernel == "captured" and first.grid == (4, 2, 1) and first.programs == 8
    assert first.signature == {
        "x": "*fp32",
        "tile": "tensordesc<bf16[16, 64]>",
        "n": "i32",
        "one": "constexpr",
        "scale": "fp32",
        "nothing": "constexpr",
        "BLOCK": "constexpr",
        "FUNCTION": "constexpr",
    }
    helper = first.constexprs.pop("FUNCTION")
    assert first.constexprs == {"one": 1, "nothing": None, "BLOCK": 16}
    assert helper.name == "helper_of_captured" and helper.text.startswith("def helper_of_captured")
    assert first.attrs == {(0,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}
    assert first.num_warps == 8 and first.num_stages == 3

    assert second.attrs == {(5,): [["tt.divisibility", 16]]}
    assert second.num_warps == 4 and second.num_stages == 2
    assert second.constexprs == {"BLOCK": 16, "FUNCTION": "relu"}

    source = first.source
    assert source.text.startswith("def captured(x, tile")
    assert source.modules["tl"] == "triton.language"
    assert source.functions["helper_of_captured"].constants["OFFSET"].value == 7


def test_capture_records_each_configuration():
    x, y, out = torch.ones(3, 100)
    with interpreter.capture_launches() as launches:
        tuned_add[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, y, out, 100)
    assert [(launch.constexprs["BLOCK"], launch.grid[0]) for launch in launches] == [
        (64, 2),
        (32, 4),
    ]
    assert all(launch.autotuned for launch in launches)

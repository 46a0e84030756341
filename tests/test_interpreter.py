"""Triton's interpreter after `kernelbook` made it right: numbers, addresses, routing, recording."""

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelbook import interpreter

BLOCK = 1024
NARROW = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@triton.jit
def cast(source, target, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + i, mask=i < n)
    tl.store(target + i, x.to(target.dtype.element_ty), mask=i < n)


@triton.jit
def cast_toward_zero(source, target, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(source + i, mask=i < n)
    y = x.to(target.dtype.element_ty, fp_downcast_rounding="rtz")
    tl.store(target + i, y, mask=i < n)


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    total = tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside)
    tl.store(out + i, total, mask=inside)


def run_cast(values, dtype, kernel=cast):
    out = torch.empty(values.shape, dtype=dtype)
    grid = (triton.cdiv(values.numel(), BLOCK),)
    kernel[grid](values, out, values.numel(), BLOCK=max(BLOCK, values.numel() // grid[0]))
    return out


def same(a, b):
    """Equal values, NaN where NaN, and the same zeros."""
    a, b = a.double(), b.double()
    equal = (a == b) & (torch.signbit(a) == torch.signbit(b))
    return bool((equal | (a.isnan() & b.isnan())).all())


def expected_cast(values, dtype):
    """torch's conversion; fp8 saturates, as a GPU's does and torch's does not."""
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        largest = torch.finfo(dtype).max
        values = values.float().clamp(-largest, largest)
    return values.to(dtype)


def all_codes(dtype):
    bits = dtype.itemsize * 8
    codes = torch.arange(-(2 ** (bits - 1)), 2 ** (bits - 1))
    return codes.to(torch.int16 if bits == 16 else torch.int8).view(dtype)


def awkward_values(dtype):
    """Halves between neighbors and beside them, overflow, subnormals, inf, NaN, random bits."""
    finite = all_codes(dtype).double()
    finite = finite[finite.isfinite()].unique()
    halves = ((finite[1:] + finite[:-1]) / 2).float()
    up, down = torch.tensor(torch.inf), torch.tensor(-torch.inf)
    random = torch.from_numpy(np.random.default_rng(0).integers(0, 2**32, 30000, dtype=np.uint32))
    edges = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 500, -500, 6e4, 7e4, 3.4e38])
    parts = [halves, halves.nextafter(up), halves.nextafter(down), edges]
    return torch.cat([*parts, random.view(torch.float32)])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_code_widens_and_copies_exactly(dtype):
    codes = all_codes(dtype)
    assert same(run_cast(codes, torch.float32), codes.float())
    as_integer = torch.int16 if dtype.itemsize == 2 else torch.int8
    assert torch.equal(run_cast(codes, dtype).view(as_integer), codes.view(as_integer))
    if dtype.itemsize == 1:
        assert same(run_cast(codes, torch.bfloat16), codes.float().bfloat16())
        assert same(run_cast(codes, torch.float16), codes.float().half())


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_casts_round_to_nearest_even(dtype):
    values = awkward_values(dtype)
    assert same(run_cast(values, dtype), expected_cast(values, dtype))


@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", NARROW[1:], ids=str)
def test_sixteen_bits_to_fp8(source, dtype):
    values = all_codes(source)
    assert same(run_cast(values, dtype), expected_cast(values, dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_cast_toward_zero(dtype):
    values = torch.randn(1000) * 100
    out = run_cast(values, dtype, cast_toward_zero).float()
    nearest = values.to(dtype).float()
    assert (out.abs() <= values.abs()).all()
    assert (out != nearest).any() and torch.equal(out[out == nearest], nearest[out == nearest])


@given(st.lists(st.floats(width=32), min_size=1, max_size=64))
def test_bf16_of_any_float(values):
    values = torch.tensor(values)
    assert same(run_cast(values, torch.bfloat16), values.bfloat16())


@triton.jit
def arithmetic(x, y, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a + b)
    tl.store(out + BLOCK + i, a - b)
    tl.store(out + 2 * BLOCK + i, a * b)
    tl.store(out + 3 * BLOCK + i, tl.maximum(a, b))
    tl.store(out + 4 * BLOCK + i, tl.minimum(a, b))
    tl.store(out + 5 * BLOCK + i, tl.where(a < b, a, b * 3.0))
    tl.store(out + 6 * BLOCK + i, -a)
    tl.store(out + 7 * BLOCK + i, tl.abs(a))
    tl.store(out + 8 * BLOCK + i, (a > b).to(tl.bfloat16))
    tl.store(out + 9 * BLOCK + i, a + tl.full([BLOCK], 1.25, tl.bfloat16))
    tl.store(out + 10 * BLOCK + i, tl.clamp(a, -1.0, 0.5))
    tl.store(out + 11 * BLOCK + i, a.to(tl.int16, bitcast=True).to(tl.bfloat16, bitcast=True))
    tl.store(out + 12 * BLOCK + i, tl.exp(a.to(tl.float32)))
    tl.store(out + 13 * BLOCK + i, (a * 100).to(tl.int32))
    tl.store(out + 14 * BLOCK + i, tl.zeros([BLOCK], tl.bfloat16) + tl.sum(b) + tl.max(a))
    tl.store(out + 15 * BLOCK + i, i.to(tl.bfloat16) + i)


def test_bf16_arithmetic_is_torchs():
    torch.manual_seed(0)
    a, b = torch.randn(1024).bfloat16(), torch.randn(1024).bfloat16()
    out = torch.empty(16, 1024, dtype=torch.bfloat16)
    arithmetic[(1,)](a, b, out, BLOCK=1024)
    i = torch.arange(1024)
    expected = [
        a + b,
        a - b,
        a * b,
        torch.maximum(a, b),
        torch.minimum(a, b),
        torch.where(a < b, a, b * 3.0),
        -a,
        a.abs(),
        (a > b).bfloat16(),
        a + 1.25,
        a.clamp(-1, 0.5),
        a,
        a.float().exp().bfloat16(),
        (a * 100).int().bfloat16(),
        (b.float().sum().bfloat16() + a.max().float()).bfloat16().expand(1024),
        i.bfloat16() + i,
    ]
    for row, want in zip(out, expected, strict=True):
        torch.testing.assert_close(row, want, rtol=0, atol=0)


@triton.jit
def scale_by_float_argument(x, out, factor, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    y = tl.load(x + i) * factor  # a float argument is fp32 on a GPU: so is the product
    tl.static_assert(y.dtype == tl.float32)
    tl.store(out + i, y)


def test_float_arguments_are_fp32():
    x, out = torch.randn(64).bfloat16(), torch.empty(64)
    scale_by_float_argument[(1,)](x, out, 0.3, BLOCK=64)
    assert torch.equal(out, x.float() * 0.3)


@triton.jit
def matmul(a, b, c, n, k, BLOCK: tl.constexpr):
    rows, cols, inner = tl.arange(0, BLOCK), tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, k, BLOCK):
        left = tl.load(a + rows[:, None] * k + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * n + cols[None, :])
        acc = tl.dot(left, right, acc)
    tl.store(c + rows[:, None] * n + cols[None, :], acc)


@pytest.mark.parametrize("dtype", [torch.float16, *NARROW], ids=str)
def test_dot_accumulates_in_fp32(dtype):
    torch.manual_seed(0)
    a, b = torch.randn(64, 256).to(dtype), torch.randn(256, 64).to(dtype)
    c = torch.empty(64, 64)
    matmul[(1,)](a, b, c, 64, 256, BLOCK=64)
    error = (c - a.double() @ b.double()).norm() / (a.double() @ b.double()).norm()
    assert error < 1e-6


@triton.jit
def fp32_product(a, b, c, PRECISION: tl.constexpr):
    i = tl.arange(0, 64)
    tile = i[:, None] * 64 + i[None, :]
    product = tl.dot(tl.load(a + tile), tl.load(b + tile), input_precision=PRECISION)
    tl.store(c + tile, product)


def test_fp32_dot_is_tf32_unless_told_otherwise():
    torch.manual_seed(0)
    a, b, c = torch.randn(64, 64), torch.randn(64, 64), torch.empty(64, 64)
    want = a.double() @ b.double()
    errors = {}
    for precision in (None, "tf32", "tf32x3", "ieee"):
        fp32_product[(1,)](a, b, c, PRECISION=precision)
        errors[precision] = float((c - want).norm() / want.norm())
    assert 2e-4 < errors[None] == errors["tf32"] < 4e-4
    assert errors["ieee"] < 1e-6 and errors["tf32x3"] < 1e-6


def test_int8_dot_is_exact():
    a = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    b = torch.randint(-128, 128, (64, 32), dtype=torch.int8)

    @triton.jit
    def kernel(a, b, c):
        m, k = tl.arange(0, 32), tl.arange(0, 64)
        left = tl.load(a + m[:, None] * 64 + k[None, :])
        right = tl.load(b + k[:, None] * 32 + m[None, :])
        tl.store(c + m[:, None] * 32 + m[None, :], tl.dot(left, right, out_dtype=tl.int32))

    c = torch.empty(32, 32, dtype=torch.int32)
    kernel[(1,)](a, b, c)
    assert torch.equal(c, a.int() @ b.int())


@triton.jit
def scores_to_weights(scores, peak):
    return tl.exp2((scores - peak) * 1.44269504)


@triton.jit
def attention(q, k, v, out, n, scale, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    head, d = tl.program_id(1) * n * D, tl.arange(0, D)
    rows = tl.program_id(0) * M + tl.arange(0, M)
    queries = tl.load(q + head + rows[:, None] * D + d[None, :])
    peak, total = tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for start in range(0, n, N):
        columns = start + tl.arange(0, N)
        keys = tl.load(k + head + columns[:, None] * D + d[None, :])
        scores = tl.dot(queries, tl.trans(keys)) * scale
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = scores_to_weights(scores, higher[:, None])
        rescale = scores_to_weights(peak, higher)
        total = total * rescale + tl.sum(weights, 1)
        values = tl.load(v + head + columns[:, None] * D + d[None, :])
        acc = tl.dot(weights.to(values.dtype), values, acc * rescale[:, None])
        peak = higher
    tl.store(out + head + rows[:, None] * D + d[None, :], acc / total[:, None])


def test_tiled_attention_in_bf16():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 256, 64).bfloat16() for _ in range(3))
    out = torch.empty_like(q)
    attention[(4, 2)](q, k, v, out, 256, 0.125, D=64, M=64, N=64)
    q, k, v = q.double(), k.double(), v.double()
    want = (q @ k.mT / 8).softmax(-1) @ v
    assert (out - want).norm() / want.norm() < 3e-3


@triton.jit
def count_up(cells, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    before = tl.atomic_add(cells + i % 4, tl.full([BLOCK], 1.0, cells.dtype.element_ty), i < n)
    tl.store(out + i, before, mask=i < n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_atomics(dtype):
    cells, before = torch.zeros(4, dtype=dtype), torch.zeros(16, dtype=dtype)
    count_up[(2,)](cells, before, 10, BLOCK=16)
    assert cells.tolist() == [6, 6, 4, 4]
    assert before[:10].tolist() == [3, 3, 2, 2, 4, 4, 3, 3, 5, 5]


# --- addresses


@triton.jit
def load_past_end(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def store_past_end(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n))


@triton.jit
def below_start(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i - 3, mask=i < n), mask=i < n)


@triton.jit
def atomic_past_end(x, y, out, n, BLOCK: tl.constexpr):
    tl.atomic_add(out + tl.arange(0, BLOCK), 1.0)


@triton.jit
def transposed_pointers(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    pointers = (x + tl.reshape(i, [BLOCK // 2, 2])).T
    tl.store(out + i, tl.reshape(tl.load(pointers), [BLOCK]), mask=i < n)


OUTSIDE = [
    (load_past_end, "load_past_end: load of x at element 100 and 27 more, but x has 100 elements"),
    (store_past_end, "store_past_end: store of out at element 100 and 27 more, but out has 100"),
    (below_start, "below_start: load of x at element -3 and 2 more, but x has 100 elements"),
    (atomic_past_end, "atomic_past_end: atomic of out at element 100 and 27 more, but out has 100"),
    (transposed_pointers, "transposed_pointers: load of x at element 100 and 27 more"),
]


@pytest.mark.parametrize(("kernel", "message"), OUTSIDE, ids=lambda p: getattr(p, "__name__", ""))
def test_outside_is_an_error_ten_times_of_ten(kernel, message):
    for _ in range(10):
        # One storage: what lies past the end of each belongs to the others.
        x, y, out = torch.ones(3, 100)
        with pytest.raises(interpreter.AccessError, match="is the mask missing") as caught:
            kernel[(1,)](x, y, out, 100, BLOCK=128)
        assert message in str(caught.value)
        assert (x == 1).all() and (y == 1).all() and (out == 1).all()


@triton.jit
def through_helper(x, y, out, n, BLOCK: tl.constexpr):
    load_past_end(x, y, out, n, BLOCK)


def test_error_in_a_helper_is_still_an_access_error():
    x, y, out = torch.ones(3, 100)
    with pytest.raises(
        IndexError, match="kernel through_helper: load of x at element 100"
    ) as error:
        through_helper[(1,)](x, y, out, 100, BLOCK=128)
    *_, helper, line = [str(entry.statement).strip() for entry in error.traceback]
    assert helper.startswith("load_past_end(x, y") and line.startswith(
        "tl.store(out + i, tl.load(x"
    )


def test_a_view_ends_where_the_view_ends():
    storage = torch.zeros(200)
    with pytest.raises(interpreter.AccessError, match="out has 100 elements"):
        store_past_end[(1,)](torch.ones(100), torch.ones(100), storage[:100], 100, BLOCK=128)
    assert (storage == 0).all()
    rows = torch.zeros(4, 64)[:, :16]  # rows 64 apart: the last element is 3 * 64 + 15
    with pytest.raises(interpreter.AccessError, match="out has 208 elements"):
        store_past_end[(1,)](torch.ones(300), torch.ones(1), rows, 208, BLOCK=256)


def test_an_empty_tensor_has_no_element():
    with pytest.raises(interpreter.AccessError, match="x has 0 elements"):
        load_past_end[(1,)](torch.ones(0), torch.ones(1), torch.ones(1), 1, BLOCK=1)


@triton.jit
def through_table(table, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    pointer = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(out + i, tl.load(pointer + i))


def test_pointers_read_from_memory():
    out = torch.zeros(16)
    for address in (0, 12345):
        with pytest.raises(interpreter.AccessError, match="in no tensor of this launch"):
            through_table[(1,)](torch.tensor([address]), out, BLOCK=16)
    x = torch.arange(16.0)
    with pytest.raises(interpreter.AccessError, match="in no tensor of this launch"):
        through_table[(1,)](torch.tensor([x.data_ptr()]), out, BLOCK=16)
    with interpreter.reachable(x):
        through_table[(1,)](torch.tensor([x.data_ptr()]), out, BLOCK=16)
    assert torch.equal(out, x)


def test_inactive_lanes_may_point_anywhere():
    x, y, out = torch.ones(3, 100)
    add[(1,)](x, y, out, 100, BLOCK=1024)
    assert (out == 2).all()


# --- descriptors, block pointers, loops


@triton.jit
def copy_by_descriptor(source, target, rows, columns, M: tl.constexpr, N: tl.constexpr):
    target = tl.make_tensor_descriptor(target, [rows, columns], [columns, 1], [M, N])
    m, n = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([m, n], source.load([m, n]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2], ids=str)
def test_descriptors_clip_at_the_edge(dtype):
    x = torch.randn(50, 48).to(dtype)
    out = torch.zeros(50, 48).to(dtype)
    source = TensorDescriptor.from_tensor(x, [32, 16])
    copy_by_descriptor[(2, 3)](source, out, 50, 48, M=32, N=16)
    assert torch.equal(out.float(), x.float())


def test_a_descriptor_larger_than_its_tensor():
    x, out = torch.randn(64, 48), torch.zeros(50, 48)
    source = TensorDescriptor.from_tensor(x, [32, 16])
    with pytest.raises(interpreter.AccessError, match="store of target at element 2400"):
        copy_by_descriptor[(2, 3)](source, out, 64, 48, M=32, N=16)


@triton.jit
def copy_by_block_pointer(source, target, rows, columns, CHECK: tl.constexpr):
    shape = (rows, columns)
    m = tl.program_id(0) * 16
    source = tl.make_block_ptr(source, shape, (columns, 1), (m, 0), (16, 16), (1, 0))
    target = tl.make_block_ptr(target, shape, (columns, 1), (m, 0), (16, 16), (1, 0))
    for _ in range(0, columns, 16):
        tl.store(target, tl.load(source, boundary_check=CHECK), boundary_check=CHECK)
        source, target = tl.advance(source, (0, 16)), tl.advance(target, (0, 16))


def test_block_pointers_silently(capfd):
    x, out = torch.randn(50, 40).bfloat16(), torch.zeros(50, 40).bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy_by_block_pointer[(4,)](x, out, 50, 40, CHECK=(0, 1))
    assert torch.equal(x, out)
    with pytest.raises(interpreter.AccessError, match="load of source at element 2000"):
        copy_by_block_pointer[(4,)](x, out, 50, 40, CHECK=(1,))
    assert capfd.readouterr().err == ""


@triton.jit
def numbers_without_noise(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    tl.store(out + i, tl.exp(a * 1000.0) / (a - a) + tl.max(a / a))


def test_overflow_and_nan_are_silent(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers_without_noise[(1,)](torch.zeros(16), torch.zeros(16), BLOCK=16)
    assert capfd.readouterr().err == ""


# --- students' kernels: closures, helpers, autotuning


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


def pick_block(configs, named, **kwargs):
    return [config for config in configs if config.kwargs["BLOCK"] <= named["n"]]


tuned_add = triton.autotune(
    [triton.Config({"BLOCK": block}) for block in (4096, 64, 32)],
    key=["n"],
    prune_configs_by={"early_config_prune": pick_block},
)(add)


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


# --- observers and recording


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

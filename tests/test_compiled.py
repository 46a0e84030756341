"""Offline compilation: what a kernel uses, and what a GPU would refuse, without a GPU."""

import re

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelbook import backend, compiled
from kernelbook.occupancy import machine_of, occupancy

WIDTH = 16  # a Python global, which a GPU refuses in a kernel
FACTOR = tl.constexpr(3)


@triton.jit
def scaled(x, factor):
    return x * factor


@triton.jit
def copy_kernel(source, target, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, scaled(tl.load(source + at, mask=at < n), FACTOR), mask=at < n)


@triton.jit
def product_kernel(a, b, c, N: tl.constexpr, K: tl.constexpr):
    rows = tl.arange(0, N)
    inner = tl.arange(0, K)
    left = tl.load(a + rows[:, None] * K + inner[None, :])
    right = tl.load(b + inner[:, None] * N + rows[None, :])
    tl.store(c + rows[:, None] * N + rows[None, :], tl.dot(left, right))


@triton.jit
def descriptor_kernel(source, target, BLOCK: tl.constexpr):
    tile = source.load([0, 0])
    at = tl.arange(0, BLOCK)
    tl.store(target + at[:, None] * BLOCK + at[None, :], tile)


@triton.jit
def type_changes(source, target, n):
    total = 0
    for i in range(0, n):
        total = total + tl.load(source + i)
    tl.store(target, total)


@triton.jit
def breaks(source, target, n):
    total = 0.0
    for i in range(0, n):
        total += tl.load(source + i)
        if total > 3:
            break
    tl.store(target, total)


@triton.jit
def appends(source, target):
    parts = []
    for i in tl.static_range(4):
        parts.append(tl.load(source + i))
    tl.store(target, parts[0])


@triton.jit
def uses_global(source, target):
    tl.store(target, tl.load(source) * WIDTH)


@triton.jit
def indirectly(source, target):
    tl.store(target, undefined_in_helper(tl.load(source)))


@triton.jit
def undefined_in_helper(x):
    return x + missing  # noqa: F821


@triton.jit
def uses_object(source, target):
    tl.store(target, tl.load(source) * compiled.TARGETS)


@triton.jit
def calls_itself(target, n: tl.constexpr):
    if n > 0:
        calls_itself(target, n - 1)


@triton.jit
def large_tile(source, target):
    at = tl.arange(0, 512)
    tile = tl.load(source + at[:, None] * 512 + at[None, :])
    tl.store(target + at[:, None] * 512 + at[None, :], tile / tl.sum(tile, 1)[:, None])


@triton.jit
def defines(target):
    def twice(x):
        return 2 * x

    tl.store(target, twice(1.0))


def buffer(n=4096, dtype=torch.float32):
    return torch.zeros(n, dtype=dtype)


def report_of(kernel, *args, targets=(90,), **options):
    reports = compiled.compile_launches(lambda: kernel[(1,)](*args, **options), targets)
    assert [r.target for r in reports] == list(targets)
    return reports[0]


def test_reports_what_a_kernel_uses_on_each_target():
    def launch():
        copy_kernel[(4,)](buffer(), buffer(), 4096, BLOCK=1024)

    reports = compiled.compile_launches(launch)
    assert [r.target for r in reports] == [80, 89, 90]
    for r in reports:
        assert r.refusal is None and r.kernel == "copy_kernel"
        assert 8 <= r.registers <= 64 and r.spill_bytes == 0 and r.shared_bytes == 0
        assert (r.num_warps, r.limited_by, r.occupancy) == (4, "warps", 1.0)
        assert r.active_warps == machine_of(r.target).threads_per_sm // 32
    assert "sm_89" in compiled.table(reports) and "100%" in compiled.table(reports)


def test_launchers_that_choose_by_capability_are_compiled_as_they_choose():
    def launch():
        block = {(8, 0): 64, (8, 9): 128, (9, 0): 256}[backend.capability()]
        copy_kernel[(4,)](buffer(), buffer(), 4096, BLOCK=block, num_warps=block // 64)

    reports = compiled.compile_launches(launch)
    assert [(r.target, r.num_warps) for r in reports] == [(80, 1), (89, 2), (90, 4)]


def test_options_and_dtypes_of_the_launch_are_compiled():
    small = report_of(product_kernel, *[buffer(dtype=torch.bfloat16)] * 3, N=64, K=64)
    eight = report_of(product_kernel, *[buffer(dtype=torch.bfloat16)] * 3, N=64, K=64, num_warps=8)
    assert small.num_warps == 4 and eight.num_warps == 8
    assert small.shared_bytes > 0 and small.registers != eight.registers


def test_equal_launches_are_compiled_once():
    def launches():
        for _ in range(3):
            copy_kernel[(4,)](buffer(), buffer(), 4096, BLOCK=256)

    assert len(compiled.compile_launches(launches, targets=(80,))) == 1


def test_host_descriptors_compile_for_hopper():
    source = TensorDescriptor.from_tensor(torch.zeros(64, 64, dtype=torch.float16), [64, 64])
    target = torch.zeros(64, 64, dtype=torch.float16)
    report = report_of(descriptor_kernel, source, target, BLOCK=64)
    assert report.refusal is None and report.shared_bytes >= 64 * 64 * 2


def test_kernels_defined_in_functions_take_their_constants_along():
    size = tl.constexpr(32)

    @triton.jit
    def local(target):
        tl.store(target + tl.arange(0, size), FACTOR)

    assert report_of(local, buffer()).refusal is None


REFUSED = [
    (product_kernel, [buffer(), buffer(), buffer(), 16, 8], r"needs K >= 16.*"),
    (type_changes, [buffer(), buffer(), 100], r"`total` changes its type in the loop, from int32"),
    (breaks, [buffer(), buffer(), 100], r"`break`: `break` does not exist"),
    (appends, [buffer(), buffer()], r"lists cannot change in kernels \(`append`\)"),
    (uses_global, [buffer(), buffer()], r"`WIDTH` is a Python global.*tl\.constexpr"),
    (indirectly, [buffer(), buffer()], r"in undefined_in_helper, line 2.*`missing` is not defined"),
    (uses_object, [buffer(), buffer()], r"`compiled` is a Python global"),
    (calls_itself, [buffer(), 3], r"calls itself"),
    (defines, [buffer()], r"line 2, `def twice\(x\):`: a kernel cannot define functions: write"),
    (large_tile, [buffer(512 * 512)] * 2, r"512 × 512 tile.*1024 KiB.*4 warps hold 128 KiB"),
]


@pytest.mark.parametrize(("kernel", "args", "message"), REFUSED)
def test_what_only_the_interpreter_accepts_is_refused_in_plain_words(kernel, args, message):
    report = report_of(kernel, *args)
    assert re.search(message, report.refusal), report.refusal
    assert report.registers is None and report.occupancy is None
    assert report.refusal.startswith(kernel.fn.__name__)
    assert "refused for sm_90" in compiled.table([report])


BAD_LAUNCHES = [
    ((1,), {"num_wraps": 4}, r"the kernel has no parameter \['num_wraps'\]"),
    ((1,), {"num_warps": 64}, r"num_warps must be a power of two, at most 32 .*, got 64"),
    ((1,), {"num_warps": 3}, r"num_warps must be a power of two, at most 32 .*, got 3"),
    ((1,), {"num_warps": 0}, r"num_warps must be a power of two, at most 32 .*, got 0"),
    ((1, 65536), {}, r"at most 65535 programs along y, the grid is \(1, 65536, 1\)"),
    ((1, 1, 65536), {}, r"at most 65535 programs along z, the grid is \(1, 1, 65536\)"),
    ((2**31,), {}, r"at most 2147483647 programs along x"),
    ((-1,), {}, r"a grid cannot be negative, it is \(-1, 1, 1\)"),
]


@pytest.mark.parametrize(("grid", "options", "message"), BAD_LAUNCHES)
def test_launches_that_a_gpu_does_not_take_are_refused_here_and_there(grid, options, message):
    def launch():
        copy_kernel[grid](buffer(), buffer(), 4096, BLOCK=64, **options)

    (report,) = compiled.compile_launches(launch, targets=(90,))
    assert re.match(f"copy_kernel: .*{message}", report.refusal), report.refusal
    with pytest.raises((TypeError, ValueError), match=f"copy_kernel: .*{message}"):
        launch()


def test_a_grid_of_no_programs_launches_nothing():
    copy_kernel[(0,)](buffer(), buffer(), 4096, BLOCK=64)


def test_refusals_name_the_line():
    assert "uses_global, line 2, `tl.store(target, tl.load(source) * WIDTH)`" in (
        report_of(uses_global, buffer(), buffer()).refusal
    )


def test_shared_memory_is_compared_with_each_targets_limit():
    def launch():
        tensors = [buffer(128 * 256, torch.float16)] * 3
        product_kernel[(1,)](*tensors, N=128, K=256, num_warps=8)

    by_target = {r.target: r for r in compiled.compile_launches(launch)}
    assert by_target[90].refusal is None and by_target[80].refusal is None
    assert "shared memory" in by_target[89].refusal and "99 KiB" in by_target[89].refusal


def test_fp8_is_refused_where_the_hardware_has_none():
    def launch():
        eight = buffer(dtype=torch.float8_e4m3fn)
        copy_kernel[(1,)](eight, eight, 100, BLOCK=128)

    older, _newer = compiled.compile_launches(launch, targets=(80, 90))
    assert "no fp8e4nv" in older.refusal


def test_unknown_targets_are_named():
    with pytest.raises(ValueError, match=r"target 61 is unknown.*80, 89, 90"):
        report_of(copy_kernel, buffer(), buffer(), 100, 128, targets=(61,))


FAKE = """
import json, os, sys, time
for line in sys.stdin:
    job = json.loads(line)
    if job["kernel"] == "breaks":
        os._exit(7)
    if job["kernel"] == "appends":
        time.sleep(60)
    answer = {"registers": 32, "spill_bytes": 0, "shared_bytes": 0, "num_warps": 4}
    print(json.dumps(answer), flush=True)
"""


def test_a_crash_or_hang_costs_only_its_own_kernel(tmp_path, monkeypatch):
    worker = tmp_path / "worker.py"
    worker.write_text(FAKE)
    monkeypatch.setattr(compiled, "WORKER", worker)
    monkeypatch.setattr(compiled, "_cache", lambda: tmp_path)

    def launches():
        breaks[(1,)](buffer(), buffer(), 9)
        appends[(1,)](buffer(), buffer())
        uses_global[(1,)](buffer(), buffer())

    crash, hang, fine = compiled.compile_launches(launches, targets=(90,), timeout_s=1)
    assert "breaks: the compiler crashed (exit code 7)" in crash.refusal
    assert "appends: the compiler did not finish within 1 s" in hang.refusal
    assert fine.refusal is None and fine.registers == 32
    assert len(list(tmp_path.glob("*.json"))) == 1  # neither crash nor hang is remembered


def test_a_second_call_starts_no_process(monkeypatch):
    first = report_of(copy_kernel, buffer(), buffer(), 4096, BLOCK=512)
    monkeypatch.setattr(compiled.subprocess, "Popen", None)
    assert report_of(copy_kernel, buffer(), buffer(), 4096, BLOCK=512) == first


# From NVIDIA's occupancy calculator: (registers, shared bytes, warps, target) -> blocks, limit
OCCUPANCY = [
    ((32, 0, 4, 90), 16, "warps"),
    ((255, 0, 4, 90), 2, "registers"),
    ((168, 0, 4, 90), 3, "registers"),
    ((128, 0, 8, 80), 2, "registers"),
    ((40, 100 * 1024, 4, 90), 2, "shared memory"),
    ((40, 100 * 1024, 4, 80), 1, "shared memory"),
    ((32, 0, 1, 90), 32, "blocks"),
    ((32, 0, 4, 89), 12, "warps"),
    ((32, 60 * 1024, 4, 75), 1, "shared memory"),
]


@pytest.mark.parametrize(("used", "blocks", "limit"), OCCUPANCY)
def test_occupancy_follows_the_four_limits(used, blocks, limit):
    registers, shared, warps, target = used
    found = occupancy(registers, shared, warps, machine_of(target))
    assert (found.blocks, found.limited_by) == (blocks, limit)
    slots = machine_of(target).threads_per_sm // 32
    assert found.fraction == pytest.approx(blocks * warps / slots)


def test_the_compiling_process_imports_neither_torch_nor_kernelbook():
    text = compiled.WORKER.read_text()
    assert not re.search(r"^(import|from) (torch|kernelbook)", text, re.M)


@triton.jit
def softmax_kernel(source, target):
    at = tl.arange(0, WIDE)
    tl.store(target + at, tl.softmax(tl.load(source + at)))


WIDE = tl.constexpr(64)


def softmax(x):  # a global of the same name as `tl.softmax`
    out = torch.empty_like(x)
    softmax_kernel[(1,)](x, out)
    return out


def test_an_attribute_is_not_the_global_of_its_name():
    assert torch.allclose(softmax(torch.arange(64.0)), torch.arange(64.0).softmax(-1))
    assert {r.refusal for r in compiled.compile_launches(lambda: softmax(buffer(64)))} == {None}

"""Tiled prefill attention: right on every path, counted exactly, compiled for each GPU."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import FunctionType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelbook import backend, checks, compiled, meter
from kernelbook.kernels import attention_prefill as prefill

FOLDER = Path(prefill.__file__).parent
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "fp16", "bf16"])
hopper = pytest.mark.skipif(
    not backend.GPU or backend.capability() != (9, 0),
    reason="no Hopper GPU: the prefill kernel with warp roles was not run",
)
gpu = pytest.mark.skipif(not backend.GPU, reason="no GPU: the prefill kernel was not run compiled")


def use(path: str, patch):
    """Send calls down one path: "pointers", "descriptors" (TMA) or "roles" (Hopper's kernel)."""
    if path != "roles":
        patch.setattr(prefill, "has_fast_twin", lambda *_: False)
    described = path == "descriptors"
    patch.setattr(prefill, "uses_tma", lambda *qkv: described and all(map(fits, qkv)))


def fits(x) -> bool:
    return x.numel() > 0 and prefill.describable(x)


@pytest.fixture(
    params=[
        pytest.param(("cpu", "pointers"), id="cpu-pointers"),
        pytest.param(("cpu", "descriptors"), id="cpu-descriptors"),
        pytest.param(("cuda", "pointers"), id="cuda-pointers", marks=gpu),
        pytest.param(("cuda", "descriptors"), id="cuda-descriptors", marks=hopper),
        pytest.param(("cuda", "roles"), id="cuda-roles", marks=hopper),
    ]
)
def device(request, monkeypatch):
    """Where tensors are, with calls sent down one path."""
    place, path = request.param
    use(path, monkeypatch)
    return place


def inputs(batch, heads, kv_heads, queries, keys, head_dim, dtype=torch.float32, device="cpu"):
    """Fresh values each run, so that no test leans on particular ones."""
    q = torch.randn(batch, heads, queries, head_dim, device=device)
    k, v = (torch.randn(batch, kv_heads, keys, head_dim, device=device) for _ in range(2))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def right(q, k, v, causal, scale=None, call=prefill.attention_prefill):
    """Run into poisoned memory and compare with float64."""
    expected = checks.reference64(prefill.reference, q, k, v, causal=causal, scale=scale)
    with checks.poisoned_memory():
        out = call(q, k, v, causal=causal, scale=scale)
    assert checks.every_element_written(out)
    checks.check(out, expected, dtype=q.dtype)


SHAPES = [  # batch, query heads, KV heads, queries, keys, head_dim, causal
    (1, 2, 2, 128, 256, 64, False),
    (2, 4, 2, 65, 65, 80, True),
    (1, 4, 1, 1, 77, 64, True),
    (1, 3, 3, 129, 130, 40, True),
    (1, 6, 2, 70, 3, 8, False),
    (1, 2, 1, 200, 300, 128, True),
    (1, 1, 1, 33, 70, 256, True),
    (2, 2, 1, 100, 40, 64, True),  # the first 60 queries see no key
]


@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_right_on_odd_sizes(shape, dtype, device):
    *sizes, causal = shape
    right(*inputs(*sizes, dtype=dtype, device=device), causal)


LARGE = [(2, 8, 2, 1500, 1500, 128), (1, 4, 4, 777, 2049, 64), (3, 48, 16, 640, 700, 96)]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_right_where_programs_take_several_tiles(sizes, causal, device, monkeypatch):
    if device == "cpu":
        pytest.skip("large shapes are for a GPU: prefill not run on them in the interpreter")
    q, k, v = inputs(*sizes, dtype=torch.bfloat16, device=device)
    right(q, k, v, causal)
    with monkeypatch.context() as patch:  # heads one after another, as where L2 is too small
        patch.setattr("kernelbook.kernels.attention_prefill_hopper.IN_L2", 0)
        right(q, k, v, causal)


LENGTHS = st.integers(1, 150)


@given(
    lengths=st.tuples(LENGTHS, LENGTHS),
    heads=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    head_dim=st.integers(8, 100),
    layout=st.permutations([0, 1, 2, 3]),
    causal=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_any_length_head_and_stride(lengths, heads, head_dim, layout, causal, dtype):
    queries, keys = lengths
    kv_heads, group = heads
    sizes = (1, kv_heads * group, kv_heads, queries, keys, head_dim)
    # the same values, laid out in memory in another order of dimensions
    back = [layout.index(i) for i in range(4)]
    right(*(x.permute(layout).contiguous().permute(back) for x in inputs(*sizes, dtype)), causal)


def test_views_and_expanded_heads(device):
    q, k, v = inputs(1, 4, 1, 66, 90, 64, torch.float16, device)
    right(
        q[:, ::2, 3:], k[..., 5:, :].expand(1, 2, 85, 64), v[:, :, :85].expand(1, 2, 85, 64), True
    )


def test_scale(device):
    right(*inputs(1, 2, 2, 70, 140, 64, torch.float16, device), False, scale=0.3)


@dtypes
def test_log_sum_exp(dtype, device):
    q, k, v = inputs(1, 4, 2, 90, 70, 64, dtype, device)
    _, lse = prefill.attention_prefill(q, k, v, causal=True, return_lse=True)
    scores = q.double() @ k.double().repeat_interleave(2, 1).transpose(-1, -2) / 8
    hidden = torch.ones(90, 70, device=device).tril(-20) == 0
    expected = scores.masked_fill(hidden, -torch.inf).logsumexp(-1)
    assert torch.equal(lse.isinf(), expected.isinf()) and lse.isinf().sum() == 4 * 20
    checks.check(lse, expected, 1e-5)


def test_rows_that_see_no_key_are_zero(device):
    q, k, v = inputs(1, 1, 1, 50, 20, 64, torch.float16, device)
    out = prefill.attention_prefill(q, k, v, causal=True)
    assert not out[:, :, :30].any() and out[:, :, 30:].any(-1).all()
    assert not prefill.attention_prefill(q, k[:, :, :0], v[:, :, :0]).any()


def test_no_queries():
    q, k, v = inputs(1, 2, 1, 0, 5, 16)
    out, lse = prefill.attention_prefill(q, k, v, return_lse=True)
    assert out.shape == (1, 2, 0, 16) and lse.shape == (1, 2, 0)


# --- errors in plain words -----------------------------------------------------------------

ok = inputs(1, 4, 2, 3, 5, 16)


@pytest.mark.parametrize(
    "q, k, v, options, message",
    [
        (ok[0][0], ok[1], ok[2], {}, "q must be"),
        (ok[0], ok[1], ok[2][:, :, :4], {}, "k and v both"),
        (ok[0], ok[1][..., :8], ok[2][..., :8], {}, "agree in batch and head dimension"),
        (ok[0][:, :3], ok[1], ok[2], {}, "multiple of KV heads, got 3 and 2"),
        (ok[0][..., :4], ok[1][..., :4], ok[2][..., :4], {}, "from 8 to 256, got 4"),
        (ok[0].half(), ok[1], ok[2], {}, "must all be fp16, bf16 or fp32"),
        (*(x.double() for x in ok), {}, "must all be fp16, bf16 or fp32"),
        (*ok, {"scale": 0.0}, "scale must be positive"),
        (ok[0].to("meta"), *ok[1:], {}, "one device"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_say_what_is_wrong(q, k, v, options, message):
    with pytest.raises(ValueError, match=message):
        prefill.attention_prefill(q, k, v, **options)


# --- counted -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes, dtype",
    [
        ((1, 1, 1, 128, 128, 64), torch.float16),
        ((1, 2, 1, 128, 256, 64), torch.bfloat16),
        ((2, 2, 2, 128, 128, 32), torch.float16),
        ((1, 2, 2, 256, 192, 128), torch.bfloat16),
        ((1, 4, 2, 64, 32, 64), torch.float32),
    ],
    ids=str,
)
def test_meter_equals_work(sizes, dtype):
    counts = meter.count(prefill.attention_prefill, *inputs(*sizes, dtype=dtype))
    work = prefill.work(*sizes, dtype)
    assert (counts.flops, counts.read, counts.written) == (work.flops, work.read, work.written)
    assert counts.launches == 1
    causal = meter.count(prefill.attention_prefill, *inputs(*sizes, dtype=dtype), causal=True)
    useful = prefill.work(*sizes, dtype, causal=True)
    assert causal.written == useful.written and useful.flops < causal.flops <= work.flops


@pytest.mark.parametrize("queries, keys", [(1, 1), (5, 5), (3, 9), (9, 3), (1, 8), (8, 1)])
def test_visible_pairs(queries, keys):
    mask = torch.ones(queries, keys).tril(keys - queries)
    assert prefill.visible_pairs(queries, keys, True) == int(mask.sum())
    assert prefill.visible_pairs(queries, keys, False) == queries * keys


# --- compiled ------------------------------------------------------------------------------


def launches(dtype, *head_dims):
    """A function that launches every configuration for a dtype; causal has both kinds of tile."""
    sets = [inputs(1, 2, 1, 256, 256, head_dim, dtype) for head_dim in head_dims]
    return lambda: [prefill.attention_prefill(*qkv, causal=True) for qkv in sets]


def test_compiles_within_each_gpus_shared_memory():
    reports = compiled.compile_launches(launches(torch.bfloat16, 64, 128, 256))
    assert [report.target for report in reports] == [80] * 3 + [89] * 3 + [90] * 3
    assert [report.refusal for report in reports] == [None] * 9
    # a few registers spilled outside the loop are no loss; a tile too large spills thousands
    assert max(report.spill_bytes for report in reports) <= 256


def test_fp32_compiles_within_each_gpus_shared_memory():
    reports = compiled.compile_launches(launches(torch.float32, 64, 128, 256), targets=[80, 90])
    assert [report.refusal for report in reports] == [None] * 6


def test_descriptors_compile(monkeypatch):
    use("descriptors", monkeypatch)
    (report,) = compiled.compile_launches(launches(torch.bfloat16, 128), targets=[90])
    assert report.refusal is None and report.shared_bytes <= 227 * 1024


# Gluon is compiled from a signature, in a process where Triton is not in its interpreter.
GLUON = """
import json, os, sys, types

# The package without its __init__, which would put Triton in its interpreter.
sys.modules["kernelbook"] = package = types.ModuleType("kernelbook")
package.__path__ = [sys.argv[3]]
from kernelbook import backend
os.environ.pop("TRITON_INTERPRET", None)
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from kernelbook.kernels import attention_prefill_hopper as hopper
import torch

kernel = hopper.attention_prefill_hopper_kernel
width, causal = int(sys.argv[1]), sys.argv[2] == "causal"
consumers, stages = hopper.roles(width)
constants = dict(lse=None, CONSUMERS=consumers, STAGES=stages, CAUSAL=causal, FOLDED=causal,
                 LSE=False)
signature = {}
for name in kernel.arg_names:
    if name in ("q", "k", "v", "out"):
        rows = hopper.KEYS if name in "kv" else hopper.ROWS.value
        layout = hopper.layout(rows, width, torch.bfloat16)
        signature[name] = f"tensordesc<bf16[1, 1, {rows}, {width}],{layout!r}>"
    else:
        signature[name] = "constexpr" if name in constants else "i32"
signature["scale"] = "fp32"
place = {name: (i,) for i, name in enumerate(kernel.arg_names)}
source = GluonASTSource(kernel, signature, {place[n]: value for n, value in constants.items()})
binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
ptx = binary.asm["ptx"]
print(json.dumps({"shared": binary.metadata.shared, "wgmma": ptx.count("wgmma.mma_async")}))
"""


@pytest.mark.parametrize("width, causal", [(64, "causal"), (128, "full")])
def test_warp_roles_compile(width, causal):
    command = [sys.executable, "-c", GLUON, str(width), causal, str(FOLDER.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["shared"] <= 227 * 1024 and report["wgmma"] > 0


# --- who computes which tile, with warp roles ----------------------------------------------


def as_python(function, program: int, programs: int):
    """A scalar Gluon function as plain Python, run as one program of several."""
    language = SimpleNamespace(
        num_programs=lambda axis: programs,
        program_id=lambda axis: program,
        where=lambda condition, a, b: a if condition else b,
        minimum=min,
        maximum=max,
        constexpr=object,
    )
    return FunctionType(function.fn.__code__, {"gl": language})


@given(
    tiles=st.integers(1, 40),
    heads=st.integers(1, 40),
    sms=st.integers(1, 140),
    order=st.sampled_from([(False, False), (True, False), (True, True)]),
)
def test_each_tile_has_one_program(tiles, heads, sms, order):
    from kernelbook.kernels import attention_prefill_hopper as roles

    with backend.assume(sms=sms):
        programs = roles.programs(tiles, heads, order[1])
    dealt = []
    for program in range(programs):
        steps = as_python(roles._steps, program, programs)(tiles * heads, *order)
        assign = as_python(roles._assignment, program, programs)
        dealt += [assign(step, tiles, heads, *order) for step in range(steps)]
    assert sorted(dealt) == [(head, tile) for head in range(heads) for tile in range(tiles)]


# --- planted faults turn the checks red ----------------------------------------------------

PLAIN_FAULTS = {
    "no rescale": ("acc = acc * rescale[:, None]", "acc = acc * 1.0"),
    "mask off by one": ("column[None, :] <= row", "column[None, :] < row"),
    "last partial tile skipped": ("kv_head, free, end, row", "kv_head, free, free, row"),
}
ROLES_FAULTS = {
    "no rescale": (
        "            acc, p = warpgroup_mma_wait(0, deps=[acc, p])",
        "            rescale = rescale * 0 + 1\n"
        "            acc, p = warpgroup_mma_wait(0, deps=[acc, p])",
    ),
    "mask off by one": PLAIN_FAULTS["mask off by one"],
    "last partial tile skipped": (
        "return gl.cdiv(end, BLOCK_N), free // BLOCK_N",
        "return end // BLOCK_N, free // BLOCK_N",
    ),
}


def edited(name: str, fault: tuple[str, str], folder: Path):
    """The kernel file with one place of it changed, as a module of its own."""
    text = (FOLDER / f"{name}.py").read_text()
    before, after = fault
    assert text.count(before) == 1, f"{before!r} must stand in {name}.py exactly once"
    file = folder / f"{name}_edited.py"
    file.write_text(text.replace(before, after))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # the compiler looks a function's module up by its name
    spec.loader.exec_module(module)
    return module


def fails_as_a_wrong_number(q, k, v, call):
    """The edited kernel runs and returns numbers, and the check refuses them."""
    assert call(q, k, v, causal=True).shape == q.shape
    with pytest.raises(AssertionError, match=r"relative error .* tolerance"):
        right(q, k, v, True, call=call)


@pytest.mark.parametrize("fault", PLAIN_FAULTS)
def test_fault_in_the_kernel_is_noticed(fault, tmp_path):
    module = edited("attention_prefill", PLAIN_FAULTS[fault], tmp_path)
    fails_as_a_wrong_number(*inputs(1, 2, 1, 150, 300, 64), module.attention_prefill)


@hopper
@pytest.mark.parametrize("fault", ROLES_FAULTS)
def test_fault_in_the_kernel_with_warp_roles_is_noticed(fault, tmp_path, monkeypatch):
    module = edited("attention_prefill_hopper", ROLES_FAULTS[fault], tmp_path)
    q, k, v = inputs(1, 2, 1, 300, 450, 128, torch.bfloat16, "cuda")
    right(q, k, v, True)
    monkeypatch.setattr("kernelbook.kernels.attention_prefill_hopper.launch", module.launch)
    fails_as_a_wrong_number(q, k, v, prefill.attention_prefill)


def test_shapes_are_checked_before_the_scale_is_derived_from_them():
    empty = torch.empty(1, 1, 4, 0)
    with pytest.raises(ValueError, match="from 8 to 256"):
        prefill.attention_prefill(empty, empty, empty)
    with pytest.raises(ValueError, match="must be"):
        prefill.attention_prefill(torch.tensor(1.0), empty, empty)

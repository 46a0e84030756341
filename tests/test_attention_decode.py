"""Split-KV decode: right for every length, split and merge, counted exactly, compiled."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelbook import backend, checks, compiled, meter, model
from kernelbook.kernels import _split_launch, _splits
from kernelbook.kernels import attention_decode as decode

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
MERGES = _split_launch.MERGES
merges = pytest.mark.parametrize("merge", MERGES)
gpu = pytest.mark.skipif(not backend.GPU, reason="no GPU: the decode kernel was not run compiled")
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])


def inputs(
    batch, heads, kv_heads, capacity, head_dim, dtype=torch.float32, queries=1, device="cpu"
):
    """Fresh values each run, so that no test leans on particular ones."""
    q = torch.randn(batch, heads, queries, head_dim, device=device)
    k, v = (torch.randn(batch, kv_heads, capacity, head_dim, device=device) for _ in range(2))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def int32(lengths, device="cpu"):
    return torch.tensor(lengths, dtype=torch.int32, device=device)


def right(q, k, v, lengths=None, causal=False, scale=None, **options):
    """Run into poisoned memory, scratch too, and compare out and log-sum-exp with float64."""
    expected = checks.reference64(decode.reference, q, k, v, lengths, causal, scale)
    given = None if lengths is None else int32(lengths, q.device)
    with checks.poisoned_memory():
        out, lse = decode.attention_decode(
            q, k, v, given, causal=causal, scale=scale, return_lse=True, **options
        )
    assert checks.every_element_written(out) and checks.every_element_written(lse)
    checks.check(out, expected, dtype=q.dtype)
    expected = log_sum_exp(q, k, lengths, causal, scale)  # of one token it may be as good as 0
    torch.testing.assert_close(lse.double(), expected, rtol=1e-5, atol=1e-5)


def log_sum_exp(q, k, lengths, causal, scale):
    batch, heads, queries, head_dim = q.shape
    k = k.double().repeat_interleave(heads // k.shape[1], dim=1)
    scores = q.double() @ k.transpose(-1, -2) * (head_dim**-0.5 if scale is None else scale)
    lengths = torch.tensor([k.shape[2]] * batch if lengths is None else lengths, device=q.device)
    last = lengths[:, None] - queries + torch.arange(queries, device=q.device)  # [B, Sq]
    last = last if causal else (lengths[:, None] - 1).expand(batch, queries)
    token = torch.arange(k.shape[2], device=q.device)
    hidden = token[None, None, None, :] > last[:, None, :, None]
    return scores.masked_fill(hidden, -torch.inf).logsumexp(-1)


LENGTHS = st.one_of(st.integers(1, 3), st.integers(126, 130), st.integers(1, 700))


@given(
    lengths=st.lists(LENGTHS, min_size=1, max_size=3),
    kv_heads=st.integers(1, 2),
    group=st.sampled_from([1, 2, 3, 4, 7, 8, 16]),
    head_dim=st.sampled_from([8, 40, 64, 80, 96, 128, 256]),
    dtype=st.sampled_from(DTYPES),
    splits=st.sampled_from([None, 1, 2, 3, 8]),
    merge=st.sampled_from(MERGES),
    persistent=st.booleans(),
    spare=st.integers(0, 40),
)
def test_any_length_group_and_split(
    lengths, kv_heads, group, head_dim, dtype, splits, merge, persistent, spare
):
    sizes = (len(lengths), group * kv_heads, kv_heads, max(lengths) + spare, head_dim, dtype)
    options = {"splits": splits, "merge": merge, "persistent": persistent}
    right(*inputs(*sizes), lengths, **options)


@given(
    queries=st.integers(1, 20),
    more=st.integers(0, 300),
    group=st.sampled_from([1, 4, 6]),
    causal=st.booleans(),
    splits=st.sampled_from([None, 3]),
    merge=st.sampled_from(MERGES),
)
def test_several_queries(queries, more, group, causal, splits, merge):
    """Drafted tokens or the end of a prompt; more rows than a tile holds, too."""
    q, k, v = inputs(2, group, 1, queries + more, 32, queries=queries)
    right(q, k, v, [queries + more, queries + more // 2], causal, splits=splits, merge=merge)


@devices
@merges
def test_length_1_in_a_grid_of_64_splits(merge, device):
    q, k, v = inputs(2, 4, 2, 64 * 128, 16, device=device)
    right(q, k, v, [1, 1], splits=64, merge=merge)


@merges
def test_more_splits_than_a_merging_program_holds(merge, monkeypatch):
    """Partial results then come in chunks, and a larger maximum rescales what was merged before."""
    monkeypatch.setattr(_split_launch, "MERGED_AT_ONCE", 64)
    right(*growing(), splits=7, merge=merge)


def growing():
    """The last splits hold the largest scores."""
    q, k, v = inputs(1, 3, 1, 6 * 32 + 5, 16)
    return q, k * torch.linspace(0.1, 5, k.shape[2])[:, None], v


@devices
@merges
def test_all_but_one_split_empty_beside_a_long_sequence(merge, device):
    q, k, v = inputs(3, 4, 2, 1024, 32, device=device)
    right(q, k, v, [1024, 100, 129], splits=8, merge=merge)


@merges
def test_a_length_of_zero_gives_zero(merge):
    """Only the device may know it: a request that ended keeps its place in a captured graph."""
    q, k, v = inputs(2, 2, 1, 300, 16)
    lengths = int32([300, 1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_split_launch, "host_values", lambda x: None)
        lengths[1] = 0
        out, lse = decode.attention_decode(q, k, v, lengths, return_lse=True, splits=3, merge=merge)
    assert not out[1].any() and (lse[1] == -torch.inf).all() and lse[0].isfinite().all()
    checks.check(out[:1], checks.reference64(decode.reference, q[:1], k[:1], v[:1]))


@merges
def test_lengths_that_change_between_launches_of_one_grid(merge):
    """As a captured graph replays it: the same tensors, other lengths; counters count again."""
    q, k, v = inputs(2, 4, 2, 600, 32)
    lengths, zeros = int32([600, 1]), _split_launch.counters(torch.device("cpu"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_split_launch, "counters", lambda device: zeros)
        for now in ([600, 1], [1, 130], [257, 600], [3, 3]):
            lengths.copy_(int32(now))
            out = decode.attention_decode(q, k, v, lengths, splits=4, merge=merge)
            checks.check(out, checks.reference64(decode.reference, q, k, v, now))
            assert not zeros.any()


@gpu
@merges
def test_one_captured_graph_while_lengths_grow(merge):
    q, k, v = inputs(4, 8, 2, 4096, 128, torch.float16, device="cuda")
    lengths = int32([1, 1, 1, 1], "cuda")
    call = lambda: decode.attention_decode(q, k, v, lengths, merge=merge)  # noqa: E731
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for now in ([1, 2, 3, 4], [4096, 1, 127, 129], [2000, 4096, 33, 1]):
        lengths.copy_(int32(now))
        graph.replay()
        checks.check(out, checks.reference64(decode.reference, q, k, v, now))


@given(layout=st.permutations([0, 1, 2, 3]), splits=st.sampled_from([1, 3]))
def test_any_stride(layout, splits):
    back = [layout.index(i) for i in range(4)]
    qkv = inputs(2, 4, 2, 300, 24)
    right(*(x.permute(layout).contiguous().permute(back) for x in qkv), [300, 7], splits=splits)


def test_scale_and_lengths_as_a_list():
    q, k, v = inputs(2, 4, 2, 200, 64)
    right(q, k, v, scale=0.3)
    out = decode.attention_decode(q, k, v, [200, 9])
    checks.check(out, checks.reference64(decode.reference, q, k, v, [200, 9]))


@devices
@merges
def test_the_models_text_is_unchanged(merge, device):
    """Prompt and steps through the decode kernel, in fp32."""
    size = (8, 200) if device == "cuda" else (1, 4)

    def attention(q, k, v, **options):
        return decode.attention_decode(q, k, v, splits=2, merge=merge, **options)

    assert model.text_unchanged(attention, *size, prompt_length=40, device=device)


def test_no_sequences():
    out, lse = decode.attention_decode(*inputs(0, 2, 1, 5, 16), return_lse=True)
    assert out.shape == (0, 2, 1, 16) and lse.shape == (0, 2, 1)


# --- errors in plain words -----------------------------------------------------------------

ok = inputs(2, 4, 2, 9, 16)


@pytest.mark.parametrize(
    "change, options, message",
    [
        (lambda q, k, v: (q[0], k, v), {}, "q must be"),
        (lambda q, k, v: (q, k, v[:, :, :4]), {}, "k and v both"),
        (lambda q, k, v: (q[:1], k, v), {}, "agree in batch"),
        (lambda q, k, v: (q[:, :3], k, v), {}, "multiple of KV heads, got 3 and 2"),
        (lambda q, k, v: (q[..., :4], k[..., :4], v[..., :4]), {}, "from 8 to 256, got 4"),
        (lambda q, k, v: (q.half(), k, v), {}, "all be fp16, bf16 or fp32"),
        (lambda *qkv: [x.double() for x in qkv], {}, "fp16, bf16 or fp32"),
        (lambda q, k, v: (q.to("meta"), k, v), {}, "one device"),
        (lambda q, k, v: (q, k[:, :, :0], v[:, :, :0]), {}, "hold no token"),
        (lambda *qkv: qkv, {"scale": -1.0}, "scale must be positive"),
        (lambda *qkv: qkv, {"merge": "first"}, 'merge must be "last" or "kernel"'),
        (lambda *qkv: qkv, {"splits": 0}, "splits must be from 1"),
        (lambda *qkv: qkv, {"lengths": [3]}, "one number for each of 2"),
        (lambda *qkv: qkv, {"lengths": [3, 10]}, r"from 1 to 9, got \[3, 10\]"),
        (lambda *qkv: qkv, {"lengths": int32([0, 9])}, r"from 1 to 9, got \[0, 9\]"),
        (lambda *qkv: qkv, {"lengths": [3.5, 1.0]}, "must be integers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_say_what_is_wrong(change, options, message):
    with pytest.raises(ValueError, match=message), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_split_launch, "split_kv_kernel", None)  # nothing may be launched
        decode.attention_decode(*change(*ok), **options)


def test_a_causal_sequence_holds_its_queries():
    q, k, v = inputs(1, 2, 1, 9, 16, queries=4)
    with pytest.raises(ValueError, match="from 4 to 9"):
        decode.attention_decode(q, k, v, [3], causal=True)


# --- how many splits -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch, kv_heads, length, splits",
    [(1, 8, 1024, 8), (1, 8, 2048, 16), (1, 8, 8192, 16), (1, 8, 32768, 16), (8, 8, 2048, 2),
     (8, 8, 8192, 2), (64, 8, 2048, 1), (18, 8, 4096, 4), (1, 1, 32768, 128), (1, 8, 1, 1),
     (1, 8, 129, 2)],
)  # fmt: skip
def test_choose_splits_fills_an_h200(batch, kv_heads, length, splits):
    assert decode.choose_splits(batch, kv_heads, length, sms=132) == splits


@given(
    groups=st.integers(1, 600), length=st.integers(1, 200_000), sms=st.sampled_from([40, 108, 132])
)
def test_choose_splits_makes_whole_tiles(groups, length, sms):
    splits = decode.choose_splits(groups, 1, length, sms)
    tiles = -(-length // 128)
    assert 1 <= splits <= min(tiles, _splits.MOST_SPLITS)
    assert _split_launch.used_splits(length, splits, 128) == splits  # none is empty


@given(groups=st.integers(1, 600), tiles=st.integers(1, 600), sms=st.sampled_from([40, 108, 132]))
def test_no_other_number_of_splits_ends_sooner(groups, tiles, sms):
    """Waves × (tiles of the longest split + 2), as the text says; ties go to fewer splits."""

    def time(splits):
        return math.ceil(groups * splits / sms) * (math.ceil(tiles / splits) + 2)

    best = _splits.splits_for(groups, tiles, sms)
    others = range(1, min(tiles, _splits.MOST_SPLITS) + 1)
    assert all(time(best) < time(n) or (time(best) == time(n) and best <= n) for n in others)


# --- counted -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch, heads, kv_heads, lengths, head_dim, dtype",
    [
        (1, 8, 2, [100], 64, torch.float16),
        (2, 4, 1, [300, 1], 128, torch.bfloat16),
        (1, 4, 4, [257], 80, torch.float16),
        (3, 2, 2, [5, 64, 129], 32, torch.float32),
        (1, 16, 1, [512], 64, torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize("splits", [1, 3])
@merges
def test_meter_equals_work(batch, heads, kv_heads, lengths, head_dim, dtype, splits, merge):
    q, k, v = inputs(batch, heads, kv_heads, 600, head_dim, dtype)
    options = {"splits": splits, "merge": merge}
    counts = meter.count(decode.attention_decode, q, k, v, int32(lengths), **options)
    work = decode.work(batch, heads, kv_heads, lengths, head_dim, dtype)
    tile = decode.tile_of(q, k)
    price = decode.merge_work(kv_heads, heads // kv_heads, lengths, head_dim, splits, tile, merge)
    assert splits > 1 or price.bytes == 0
    again = 4 * batch * (counts.launches - 1)  # the second kernel reads the lengths, too
    assert (counts.read, counts.written) == (work.read + price.read + again, (work + price).written)
    assert counts.launches == 1 + (merge == "kernel" and splits > 1) and not counts.waits
    assert not counts.operations and counts.flops >= work.flops


def test_meter_counts_flops_and_shared_heads_once():
    """16 query heads of a KV head are one product's rows: no padding, and KV is requested once."""
    q, k, v = inputs(1, 16, 1, 512, 64, torch.float16)
    counts = meter.count(decode.attention_decode, q, k, v, splits=1)
    work = decode.work(1, 16, 1, 512, 64, torch.float16)
    assert counts.flops == work.flops and counts.requested == counts.bytes == work.bytes


# --- compiled ------------------------------------------------------------------------------


def test_compiles_within_each_gpus_shared_memory(monkeypatch):
    monkeypatch.setattr(
        _split_launch, "has_dependent_launch", lambda q: backend.capability() >= (9, 0)
    )
    cases = [(64, torch.bfloat16, {}), (128, torch.float16, {"merge": "kernel"})]
    sets = [(inputs(1, 8, 2, 1024, d, dtype), options) for d, dtype, options in cases]
    call = decode.attention_decode
    reports = compiled.compile_launches(
        lambda: [call(*qkv, int32([1000]), **options) for qkv, options in sets], targets=[80, 90]
    )
    assert {report.kernel for report in reports} == {"split_kv_kernel", "merge_kernel"}
    assert not any(report.refusal for report in reports)
    assert max(report.spill_bytes for report in reports) <= 64


def test_other_forms_compile_for_hopper():
    """Persistent, several causal queries, and a whole group of fp32 rows of 256."""
    half, wide = inputs(1, 8, 2, 1024, 128, torch.bfloat16), inputs(1, 4, 1, 512, 256)
    drafted = inputs(1, 8, 2, 1024, 128, torch.bfloat16, queries=8)

    def call():
        decode.attention_decode(*half, persistent=True)
        decode.attention_decode(*drafted, causal=True, return_lse=True)
        decode.attention_decode(*wide)

    reports = compiled.compile_launches(call, targets=[90])
    assert {report.kernel for report in reports} == {"split_kv_kernel", "merge_kernel"}
    assert not any(report.refusal for report in reports)


# --- planted faults turn the checks red ----------------------------------------------------

KERNELS = Path(decode.__file__).parent
FAULTS = {
    "merge without weights": ("results * weight[:, :, None]", "results"),
    "no rescale": ("acc = acc * rescale[:, None]\n", "acc = acc * 1.0\n"),
    "last tile ignored": ("tiles = tl.cdiv(length, BLOCK_N)", "tiles = length // BLOCK_N"),
    "length off by one": ("inside = token < end", "inside = token <= end"),
    "a split too few merged": ("(part < used)[:, None]", "(part < used - 1)[:, None]"),
}


def load(name: str, text: str, folder: Path, patch):
    """A module of this name and text; Triton reads a kernel's source from its file."""
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def plant(fault: tuple[str, str], folder: Path, patch) -> None:
    """Launch kernels with one place changed, of `_split_kv` or of the pieces it is made of."""
    texts = {name: (KERNELS / f"{name}.py").read_text() for name in ("_kv_tiles", "_split_kv")}
    count = sum(text.count(fault[0]) for text in texts.values())
    assert count == 1, f"{fault[0]!r} must stand in one place, is in {count}"
    for name, text in texts.items():
        imported = "from kernelbook.kernels._kv_tiles import", "from kv_tiles_edited import"
        module = load(f"{name[1:]}_edited", text.replace(*fault).replace(*imported), folder, patch)
    patch.setattr(_split_launch, "split_kv_kernel", module.split_kv_kernel)
    patch.setattr(_split_launch, "merge_kernel", module.merge_kernel)


@pytest.mark.parametrize("fault", FAULTS)
@merges
def test_fault_in_the_kernel_is_noticed(fault, merge, tmp_path, monkeypatch):
    q, k, v = inputs(2, 4, 2, 900, 64)
    right(q, k, v, [800, 300], splits=4, merge=merge)
    plant(FAULTS[fault], tmp_path, monkeypatch)
    with pytest.raises(AssertionError, match=r"relative error .* tolerance"):
        right(q, k, v, [800, 300], splits=4, merge=merge)


@merges
def test_merge_that_does_not_rescale_is_noticed(merge, tmp_path, monkeypatch):
    monkeypatch.setattr(_split_launch, "MERGED_AT_ONCE", 64)
    fault = ("acc = acc * rescale[:, None] + tl.sum", "acc = acc + tl.sum")
    plant(fault, tmp_path, monkeypatch)
    with pytest.raises(AssertionError, match=r"relative error .* tolerance"):
        right(*growing(), splits=7, merge=merge)

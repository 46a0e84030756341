"""MLA decode: right contiguous, paged and quantized, counted exactly, compiled for each GPU."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic_decode import edited, paged

from kernelbook import backend, checks, compiled, meter
from kernelbook.kernels import _partials, _split_launch, _splits
from kernelbook.kernels import attention_mla as mla

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
gpu = pytest.mark.skipif(not backend.GPU, reason="no GPU: MLA decode was not run compiled")


@pytest.fixture
def unknown(monkeypatch):
    """The host does not know lengths and pages, as where they are on a GPU."""
    monkeypatch.setattr(_partials, "host_values", lambda _: None)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=gpu)])
def device(request):
    return request.param


def inputs(heads, lengths, capacity, dtype=torch.float32, device="cpu", latent=512, rope=64):
    """q, latent, rope, lengths; cache rows beyond a sequence's length hold NaN."""
    q = torch.randn(len(lengths), heads, latent + rope, device=device).to(dtype)
    cache = torch.randn(len(lengths), capacity, latent + rope, device=device).to(dtype)
    for row, length in zip(cache, lengths, strict=True):
        row[length:] = float("nan")
    lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
    return q, cache[..., :latent], cache[..., latent:], lengths


def right(q, latent, rope, lengths, call=mla.attention_mla, tolerance=None, **options):
    """Run into poisoned memory and compare output and log-sum-exp with float64."""
    clean = [x.nan_to_num(0.0) if x.is_floating_point() else x for x in (latent, rope)]
    expected, log = checks.reference64(
        mla.reference, q, *clean, lengths, return_lse=True, **options
    )
    with checks.poisoned_memory():
        out, lse = call(q, latent, rope, lengths, return_lse=True, **options)
    checks.check(out, expected, tolerance, dtype=q.dtype)
    checks.check(lse, log, 1e-3 if q.dtype == torch.float32 else 1e-2)


def quantized(q, latent, rope, lengths):
    codes, scale = mla.quantize_latent(latent.nan_to_num(0.0))
    return (q, codes, rope, lengths), scale


SHAPES = [  # heads, lengths, capacity
    (16, [1], 1),
    (16, [77, 130], 130),
    (70, [65], 80),
    (3, [1, 16, 200], 256),
    (40, [33, 64], 70),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads, lengths, capacity", SHAPES, ids=str)
def test_right_on_odd_sizes(heads, lengths, capacity, dtype, device):
    right(*inputs(heads, lengths, capacity, dtype, device))


@given(
    heads=st.integers(1, 20),
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    widths=st.tuples(st.sampled_from([16, 32, 64]), st.sampled_from([16, 32])),
    parts=st.integers(1, 5),
    page=st.sampled_from([0, 8, 16, 20, 64, 128]),
    int8=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_any_length_split_page_and_dtype(heads, lengths, widths, parts, page, int8, dtype):
    tensors = inputs(heads, lengths, 90, dtype, latent=widths[0], rope=widths[1])
    options = {}
    if int8:
        tensors, options["latent_scale"] = quantized(*tensors)
    q, latent, rope, lengths = tensors
    if page:
        scale = options.get("latent_scale")
        (latent, rope, scale), table = paged([latent, rope, scale], page)
        options = {"block_table": table} | ({"latent_scale": scale} if int8 else {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mla, "splits", lambda *_: parts)
        right(q, latent, rope, lengths, **options)


@pytest.mark.parametrize("page", [8, 64, 256])
def test_lengths_around_a_page(page, device):
    lengths = [page - 1, page, page + 1]
    q, latent, rope, ends = inputs(16, lengths, page + 2, torch.float16, device, 32, 16)
    (latent, rope), table = paged([latent, rope], page)
    right(q, latent, rope, ends, block_table=table)


def test_all_parts_but_one_empty(device, monkeypatch, unknown):
    monkeypatch.setattr(mla, "splits", lambda *_: 64)
    right(*inputs(16, [1], 5000, torch.bfloat16, device))
    monkeypatch.setattr(mla, "splits", lambda *_: 7)
    right(*inputs(16, [1, 0, 5], 5000, torch.bfloat16, device))


def test_one_long_sequence_fills_the_sms():
    """All heads share a row, so at batch 1 there is nothing but parts to give to 132 SMs."""
    tile = mla.config(16, torch.bfloat16, False, (9, 0))
    assert mla.splits(1, 16, 132 * 64 * 4, tile, torch.device("cpu")) == 132
    right(*inputs(16, [132 * 16], 132 * 16, latent=32, rope=16))  # merges 132 parts


def test_lengths_beyond_the_cache_read_what_there_is(device, unknown):
    q, latent, rope, lengths = inputs(16, [40], 40, torch.float16, device)
    over = mla.attention_mla(q, latent, rope, lengths + 1000)
    assert torch.equal(over, mla.attention_mla(q, latent, rope, lengths))
    assert not mla.attention_mla(q, latent, rope, lengths - 41).any()


def test_absorption_is_exact():
    """The absorbed form on a latent cache equals attention with every head's keys and values."""
    heads, tokens = 4, 37
    q_nope, q_rope = torch.randn(2, heads, 128).double(), torch.randn(2, heads, 64).double()
    latent, rope = torch.randn(2, tokens, 512).double(), torch.randn(2, tokens, 64).double()
    w_uk, w_uv = torch.randn(heads, 128, 512).double(), torch.randn(heads, 512, 128).double()
    lengths = torch.tensor([tokens, 20], dtype=torch.int32)
    expected = mla.unabsorbed(q_nope, q_rope, latent, rope, w_uk, w_uv, lengths, scale=0.01)
    q = mla.absorb_query(q_nope, q_rope, w_uk)
    out = mla.expand_output(mla.reference(q, latent, rope, lengths, scale=0.01), w_uv)
    checks.check(out, expected, 1e-12)
    fast = mla.attention_mla(q.float(), latent.float(), rope.float(), lengths, scale=0.01)
    checks.check(mla.expand_output(fast, w_uv.float()), expected, 1e-4)


def test_int8_latent_is_near_the_unquantized():
    q, latent, rope, lengths = inputs(16, [120], 120)
    (_, codes, _, _), scale = quantized(q, latent, rope, lengths)
    near = mla.attention_mla(q, codes, rope, lengths, latent_scale=scale)
    checks.check(near, checks.reference64(mla.reference, q, latent, rope, lengths), 3e-2)


# --- errors in plain words -----------------------------------------------------------------

ok = inputs(2, [3, 5], 5, latent=32, rope=16)
wide = inputs(2, [3, 5], 5, latent=48, rope=16)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"q": ok[0][0]}, "q must be"),
        ({"rope": ok[2][:, :4]}, "q must be"),
        (dict(zip(("q", "latent", "rope"), wide, strict=False)), "power of two"),
        ({"q": ok[0][..., :32]}, "as wide as latent and rope"),
        ({"latent": ok[1][:1], "rope": ok[2][:1]}, "agree in batch"),
        ({"q": ok[0].half()}, "q and rope must both be"),
        ({"latent": ok[1].to(torch.int8)}, "int8 without latent_scale"),
        ({"latent_scale": torch.ones(2, 5)}, "int8 with latent_scale"),
        ({"latent": ok[1].to(torch.int8), "latent_scale": torch.ones(2, 4)}, "must be fp32"),
        ({"q": ok[0].mT.contiguous().mT}, "must be contiguous"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"lengths": ok[3].long()}, "lengths must be int32"),
        ({"lengths": ok[3][:1]}, "lengths must be int32"),
        ({"lengths": ok[3] + 1}, "lengths must be from 1 to 5"),
        ({"lengths": ok[3] - 3}, "lengths must be from 1 to 5"),
        ({"block_table": torch.zeros(2, 1, dtype=torch.int32)}, "8 to 256 tokens, got 5"),
        ({"block_table": torch.zeros(1, 1, dtype=torch.int32)}, "block_table must be int32"),
        ({"lengths": ok[3].to("meta")}, "one device"),
    ],
)
def test_errors_say_what_is_wrong(change, message):
    arguments = dict(zip(("q", "latent", "rope", "lengths"), ok, strict=True)) | change
    with pytest.raises(ValueError, match=message):
        mla.attention_mla(**arguments)


def test_pages_outside_the_pool_are_refused():
    q, latent, rope, lengths = inputs(2, [9, 9], 16, latent=32, rope=16)
    table = torch.tensor([[0, 7], [2, 7]], dtype=torch.int32)  # 7 is beyond the lengths
    with pytest.raises(ValueError, match="names page 2, the pool has pages 0 to 1"):
        mla.attention_mla(q, latent, rope, lengths, block_table=table)


# --- counted -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "heads, lengths, dtype, int8, page, parts",
    [
        (16, [128], torch.bfloat16, False, None, 1),
        (16, [64, 1], torch.float16, False, 16, 1),
        (128, [65], torch.bfloat16, True, None, 1),
        (16, [192, 64], torch.bfloat16, True, 64, 1),
        (16, [33, 100], torch.float32, False, 8, 1),
        (16, [256], torch.bfloat16, False, None, 4),
    ],
    ids=str,
)
def test_meter_equals_work(heads, lengths, dtype, int8, page, parts, monkeypatch):
    monkeypatch.setattr(mla, "splits", lambda *_: parts)
    tensors = inputs(heads, lengths, 256, dtype)
    options = {}
    if int8:
        tensors, options["latent_scale"] = quantized(*tensors)
    q, latent, rope, ends = tensors
    if page:
        scale = options.get("latent_scale")
        (latent, rope, scale), options["block_table"] = paged([latent, rope, scale], page)
        options |= {"latent_scale": scale} if int8 else {}
    counts = meter.count(mla.attention_mla, q, latent, rope, ends, **options)
    work = mla.work(lengths, heads, dtype, quantized=int8, page_size=page)
    extra = _partials.partial_bytes(len(lengths) * heads, parts, 512)
    assert (counts.read, counts.written) == (work.read + extra, work.written + extra)
    assert counts.launches == (1 if parts == 1 else 2) and counts.waits_count == 0
    if not any(length % 64 for length in lengths):  # no padding in heads or tokens
        assert counts.flops == work.flops


@given(programs=st.integers(1, 300), tiles=st.integers(0, 500), slots=st.integers(1, 140))
def test_splits_are_never_more_than_tiles(programs, tiles, slots):
    parts = _splits.splits_for(programs, tiles, slots)
    assert 1 <= parts <= max(1, min(tiles, _splits.MOST_SPLITS))
    if programs >= slots * 8:
        assert parts <= 8  # there is enough to do without cutting much


# --- compiled ------------------------------------------------------------------------------


def launching(heads, dtype, page, int8=False):
    """A function that launches one configuration, merge included."""
    q, latent, rope, lengths = inputs(heads, [5], 8192, dtype)
    options = {"latent_scale": torch.ones(1, 8192)} if int8 else {}
    latent = latent.to(torch.int8) if int8 else latent
    if page:
        latent, rope = (x.reshape(-1, page, x.shape[-1]) for x in (latent, rope))
        options = {name: x.reshape(-1, page) for name, x in options.items()}
        options["block_table"] = torch.zeros(1, 8192 // page, dtype=torch.int32)
    return lambda: mla.attention_mla(q, latent, rope, lengths, **options)


@pytest.mark.parametrize(
    "heads, dtype, page, int8, target",
    [
        (128, torch.bfloat16, None, False, 80),
        (128, torch.bfloat16, None, False, 90),
        (16, torch.bfloat16, 64, False, 90),
        (16, torch.bfloat16, None, True, 80),
        (128, torch.bfloat16, 64, True, 90),
        (16, torch.float32, None, False, 90),
    ],
    ids=str,
)
def test_compiles_within_each_gpus_shared_memory(heads, dtype, page, int8, target, monkeypatch):
    monkeypatch.setattr(
        _split_launch, "has_dependent_launch", lambda q: backend.capability() >= (9, 0)
    )
    monkeypatch.setattr(mla, "has_pairs", lambda *_: True)
    reports = compiled.compile_launches(launching(heads, dtype, page, int8), targets=[target])
    assert [report.refusal for report in reports] == [None] * 2
    assert max(report.spill_bytes for report in reports) <= 64


def test_one_tile_of_1024_does_not_fit(monkeypatch):
    """Why 576 is two tiles: the same configuration with rows padded to a power of two."""
    monkeypatch.setattr(_split_launch, "has_dependent_launch", lambda q: True)
    (two, _) = compiled.compile_launches(launching(128, torch.bfloat16, None), targets=[90])
    row = 2 * (512 + 64)  # bytes
    assert two.shared_bytes == (64 + 2 * 64) * row <= 227 * 1024 < (64 + 2 * 64) * 2 * 1024


# --- planted faults turn the checks red ----------------------------------------------------

FAULTS = {
    "no rescale in the loop": (
        "p, acc, l, m = online_softmax(scores, acc, l, m, scale)",
        "p, _, l, m = online_softmax(scores, acc, l, m, scale)",
    ),
    "rope left out": ("tl.dot(q_rope, rope_tile.T", "tl.dot(q_rope * 0, rope_tile.T"),
    "last token left out": ("arange(0, BLOCK_N) < end", "arange(0, BLOCK_N) < end - 1"),
    "second block of heads": ("batch * heads + head, head", "batch * heads + head % 64, head"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_the_kernel_is_noticed(fault, tmp_path, monkeypatch):
    module = edited("attention_mla", [FAULTS[fault]], tmp_path)
    tensors = inputs(70, [150], 150, torch.bfloat16)
    for each in (mla, module):  # one part: it has several tiles
        monkeypatch.setattr(each, "splits", lambda *_: 1)
    right(*tensors)
    with pytest.raises(AssertionError, match=r"relative error|NaN"):
        right(*tensors, call=module.attention_mla)


MERGE_FAULTS = {
    "no rescale in the merge": ("weight = tl.math.exp2(e - base)", "weight = tl.math.exp2(e - e)"),
    "first part left out": ("inside = (e > float", "inside = (part > 0)[:, None] & (e > float"),
}


@pytest.mark.parametrize("fault", MERGE_FAULTS)
def test_fault_in_the_merge_is_noticed(fault, tmp_path, monkeypatch):
    tensors = inputs(16, [300], 300)
    monkeypatch.setattr(mla, "splits", lambda *_: 4)
    right(*tensors)
    module = edited("_partials", [MERGE_FAULTS[fault]], tmp_path)
    monkeypatch.setattr(mla._partials, "merge_kernel", module.merge_kernel)
    with pytest.raises(AssertionError, match="relative error"):
        right(*tensors)

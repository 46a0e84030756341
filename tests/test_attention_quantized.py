"""Decode over int8 and fp8 KV: right against the dequantized KV, contiguous and paged."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_attention_decode import DTYPES, MERGES, devices, int32, plant
from test_attention_paged import pool_of

from kernelbook import backend, checks, compiled, meter
from kernelbook.kernels import _split_launch
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_quantized as quantized
from kernelbook.kernels.kv_quantize import LARGEST, dequantize
from kernelbook.kernels.kv_quantize import reference as quantize

CODES = list(LARGEST)
codes = pytest.mark.parametrize("to", CODES, ids=["int8", "fp8"])


def inputs(batch, heads, kv_heads, tokens, head_dim, dtype, to, device="cpu", size=1.0):
    """q, codes of k and v, their scales; tokens differ in size, so each scale matters."""
    q = torch.randn(batch, heads, 1, head_dim, device=device).to(dtype)
    sizes = torch.rand(2, batch, kv_heads, tokens, 1, device=device) + 0.1
    k, v = torch.randn(2, batch, kv_heads, tokens, head_dim, device=device) * sizes
    (k, k_scale), (v, v_scale) = quantize(k, to), quantize(v * size, to)
    return q, k, v, k_scale, v_scale


def right(q, k, v, k_scale, v_scale, lengths=None, table=None, **options):
    """Compare with attention in float64 over the dequantized KV: codes are what they are."""
    expected = quantized.reference(q.double(), k, v, k_scale, v_scale, lengths, table)
    given = None if lengths is None else int32(lengths, q.device)
    with checks.poisoned_memory():
        out = quantized.attention_quantized(
            q, k, v, k_scale, v_scale, given, block_table=table, **options
        )
    assert checks.every_element_written(out)
    checks.check(out, expected, dtype=q.dtype)


LENGTHS = st.one_of(st.integers(1, 3), st.integers(62, 66), st.integers(1, 400))


@given(
    lengths=st.lists(LENGTHS, min_size=1, max_size=3),
    kv_heads=st.integers(1, 2),
    group=st.sampled_from([1, 3, 4, 16]),
    head_dim=st.sampled_from([16, 64, 80, 96, 128, 256]),
    dtype=st.sampled_from(DTYPES),
    to=st.sampled_from(CODES),
    splits=st.sampled_from([None, 1, 3]),
    merge=st.sampled_from(MERGES),
)
def test_contiguous(lengths, kv_heads, group, head_dim, dtype, to, splits, merge):
    sizes = (len(lengths), group * kv_heads, kv_heads, max(lengths), head_dim)
    right(*inputs(*sizes, dtype, to), lengths, splits=splits, merge=merge)


@given(
    page=st.sampled_from([8, 16, 64, 24]),
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=3),
    head_dim=st.sampled_from([64, 80]),
    dtype=st.sampled_from(DTYPES),
    to=st.sampled_from(CODES),
    splits=st.sampled_from([1, 3]),
)
def test_paged(page, lengths, head_dim, dtype, to, splits):
    table, pool = pool_of(lengths, page)
    q = torch.randn(len(lengths), 4, 1, head_dim).to(dtype)
    _, *pages = inputs(pool, 4, 2, page, head_dim, dtype, to)
    right(q, *pages, lengths, table, splits=splits)


@devices
@codes
def test_values_so_small_that_half_precision_would_lose_them(to, device):
    """Weights near 0 times scales near 0: what is multiplied must stay a number."""
    q, *kv = inputs(1, 4, 1, 500, 64, torch.float16, to, device, size=2e-4)
    expected = quantized.reference(q.double(), *kv) * 1e3
    out = quantized.attention_quantized(q, *kv).double() * 1e3
    checks.check(out, expected, 5e-3)  # the output itself is rounded in steps of 6e-8


@devices
@codes
def test_log_sum_exp_and_all_but_one_split_empty(to, device):
    q, k, v, k_scale, v_scale = inputs(2, 4, 2, 1024, 32, torch.float16, to, device)
    lengths = int32([1, 1000], device)
    _, lse = quantized.attention_quantized(
        q, k, v, k_scale, v_scale, lengths, return_lse=True, splits=16
    )
    keys = dequantize(k, k_scale).double().repeat_interleave(2, 1)
    scores = q.double() @ keys.transpose(-1, -2) * 32**-0.5
    hidden = torch.arange(1024, device=device) >= lengths[:, None, None, None]
    checks.check(lse, scores.masked_fill(hidden, -torch.inf).logsumexp(-1), 1e-4)


# --- errors in plain words -----------------------------------------------------------------

q, k, v, k_scale, v_scale = inputs(2, 4, 2, 9, 16, torch.float32, torch.int8)
table = int32([[0], [1]])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((q, k.float(), v, k_scale, v_scale), "must both be int8 or fp8"),
        ((q, k, v.to(torch.float8_e4m3fn), k_scale, v_scale), "must both be int8 or fp8"),
        ((q, k, v, k_scale[..., None], v_scale), r"k_scale must be fp32 \(2, 2, 9\)"),
        ((q, k, v, k_scale, v_scale.half()), "v_scale must be fp32"),
        ((q, k, v, k_scale, v_scale.to("meta")), "one device"),
        ((q[..., :8], k, v, k_scale, v_scale), "agree in batch and head dimension"),
        ((q, k, v, k_scale, v_scale, [3, 10]), "from 1 to 9"),
        ((q, k, v, k_scale, v_scale, None, table), "paged KV needs lengths"),
        ((q, k, v, k_scale, v_scale, [9, 9], table + 1), "the pool has pages 0 to 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_say_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        quantized.attention_quantized(*arguments)


# --- counted, compiled, and faults noticed -------------------------------------------------


@pytest.mark.parametrize(
    "lengths, heads, kv_heads, head_dim",
    [([64], 8, 2, 64), ([200, 1], 4, 1, 128), ([65], 4, 4, 80), ([5, 64, 90], 2, 2, 32),
     ([256], 16, 1, 64)],
    ids=str,
)  # fmt: skip
@codes
@pytest.mark.parametrize("splits", [1, 3])
def test_meter_equals_work(lengths, heads, kv_heads, head_dim, to, splits):
    dtype, batch = torch.bfloat16, len(lengths)
    tensors = inputs(batch, heads, kv_heads, 260, head_dim, dtype, to)
    call = quantized.attention_quantized
    counts = meter.count(call, *tensors, int32(lengths), splits=splits)
    work = quantized.work(batch, heads, kv_heads, lengths, head_dim, dtype)
    tile = decode.tile_of(*tensors[:2])
    price = decode.merge_work(kv_heads, heads // kv_heads, lengths, head_dim, splits, tile)
    again = 4 * len(lengths) * (counts.launches - 1)  # the merge reads the lengths, too
    assert (counts.read, counts.written) == (work.read + price.read + again, (work + price).written)
    assert (
        counts.launches == (1 if splits == 1 else 2) and not counts.waits and not counts.operations
    )


def test_meter_equals_work_on_pages():
    table, pool = pool_of([100, 7], 16)
    q = torch.randn(2, 4, 1, 64).half()
    _, *pages = inputs(pool, 4, 2, 16, 64, torch.float16, torch.int8)
    lengths = int32([100, 7])
    call = quantized.attention_quantized
    counts = meter.count(call, q, *pages, lengths, block_table=table, splits=1)
    work = quantized.work(2, 4, 2, [100, 7], 64, torch.float16, page_size=16)
    assert (counts.read, counts.written) == (work.read, work.written)


@codes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_every_code_is_exact_in_pairs(to, dtype):
    """Values 1 to 256 apart are told apart: each code stands in even and in odd columns."""
    if not backend.GPU:
        pytest.skip("no GPU: codes were not read in pairs")
    bits = torch.arange(256, device="cuda").to(torch.uint8).view(to)
    bits = bits[~bits.float().isnan()]
    ones = torch.ones(1, 1, 1, device="cuda")
    q = torch.zeros(1, 1, 1, 64, dtype=dtype, device="cuda")
    for column in (0, 63):
        v = torch.zeros(len(bits), 1, 1, 64, device="cuda").to(to)
        v[..., column] = bits[:, None, None]
        scale = ones.expand(len(bits), 1, 1).contiguous()
        queries = q.expand(len(bits), -1, -1, -1).contiguous()
        assert _split_launch.has_pairs(queries, _split_launch.Cache(v, v, scale, scale))
        out = quantized.attention_quantized(queries, v, v, scale, scale)  # one token: out = v
        assert torch.equal(out[:, 0, 0].float(), v[:, 0, 0].float())


@codes
@pytest.mark.parametrize("pairs", [False, True], ids=["plain", "pairs"])
def test_compiles_within_each_gpus_shared_memory(to, pairs, monkeypatch):
    monkeypatch.setattr(_split_launch, "has_pairs", lambda *_: pairs)
    monkeypatch.setattr(
        _split_launch, "has_dependent_launch", lambda q: pairs and backend.capability() >= (9, 0)
    )
    tensors = inputs(1, 8, 2, 256, 128, torch.bfloat16, to)
    pages = inputs(4, 8, 2, 16, 128, torch.bfloat16, to)[1:]
    table, lengths = int32([[0, 1, 2, 3]]), int32([50])

    def call():
        quantized.attention_quantized(*tensors)
        quantized.attention_quantized(tensors[0], *pages, lengths, block_table=table)

    targets = [80, 90] if to == torch.int8 else [89, 90]
    reports = compiled.compile_launches(call, targets=targets)
    assert {report.kernel for report in reports} == {"split_kv_kernel", "merge_kernel"}
    assert not any(report.refusal for report in reports)
    assert max(report.spill_bytes for report in reports) <= 64


FAULTS = {
    "scale of keys left out": ("scores *= tl.load(at, mask=inside, other=0.0)[None, :]", "at = at"),
    "scale of values left out, fp16": ("p = p * (factor / largest)[None, :]", "p = p * 1.0"),
    "scale of values left out, bf16": ("p = p * factor[None, :]", "p = p * 1.0"),
    "largest scale not given back": ("v_tile) * largest", "v_tile)"),
    "scale of another token": (
        "tokens_at(v_scale, start, page", "tokens_at(v_scale, start // 2, page"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_the_kernel_is_noticed(fault, tmp_path, monkeypatch):
    dtype = torch.bfloat16 if "bf16" in fault else torch.float16
    tensors = inputs(1, 4, 2, 300, 64, dtype, torch.int8)
    right(*tensors, [300])
    plant(FAULTS[fault], tmp_path, monkeypatch)
    with pytest.raises(AssertionError, match=r"relative error .* tolerance"):
        right(*tensors, [300])
    assert _split_launch.split_kv_kernel.fn.__module__ == "split_kv_edited"

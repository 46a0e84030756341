"""Shared-prefix attention: equal to attention over prefix and suffix, the prefix read once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic_decode import edited, paged

from kernelbook import backend, checks, compiled, interpreter, meter
from kernelbook.kernels import attention_cascade as cascade
from kernelbook.kernels import attention_decode as decode

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
gpu = pytest.mark.skipif(not backend.GPU, reason="no GPU: cascade was not run compiled")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=gpu)])
def device(request):
    return request.param


def inputs(heads, prefix, lengths, head_dim, dtype=torch.float32, device="cpu"):
    """q, prefix_k, prefix_v, k, v, lengths; cache entries behind a sequence's suffix hold NaN."""
    query_heads, kv_heads = heads
    q = torch.randn(len(lengths), query_heads, 1, head_dim, device=device)
    shared = [torch.randn(kv_heads, prefix, head_dim, device=device) for _ in range(2)]
    capacity = max(lengths) + 9
    own = [torch.randn(len(lengths), kv_heads, capacity, head_dim, device=device) for _ in range(2)]
    for x in own:
        for row, length in zip(x, lengths, strict=True):
            row[:, length:] = float("nan")
    lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
    return *(x.to(dtype) for x in (q, *shared, *own)), lengths


def right(*tensors, call=cascade.attention_cascade, tolerance=None, **options):
    """Run into poisoned memory and compare with float64."""
    expected = checks.reference64(cascade.reference, *tensors, **options)
    with checks.poisoned_memory():
        out, lse = call(*tensors, return_lse=True, **options)
    assert checks.every_element_written(lse)
    checks.check(out, expected, tolerance, dtype=tensors[0].dtype)
    return lse


def into_pages(tensors, page: int):
    """The same call with suffixes on pages: pools [pages, Hkv, page size, D] and the table."""
    *first, k, v, lengths = tensors
    (k, v), table = paged([k.transpose(1, 2), v.transpose(1, 2)], page)
    return (*first, k.transpose(1, 2), v.transpose(1, 2), lengths), table


SHAPES = [  # (query heads, KV heads), prefix, suffix lengths, head_dim
    ((1, 1), 1, [1], 64),
    ((4, 2), 77, [30, 1, 200], 64),
    ((8, 1), 300, [5] * 9, 80),
    ((2, 2), 130, [64, 65], 128),
    ((6, 2), 33, [17], 256),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_right_on_odd_sizes(shape, dtype, device):
    right(*inputs(*shape, dtype=dtype, device=device))


@given(
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    prefix=st.integers(1, 200),
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    head_dim=st.sampled_from([8, 40, 64]),
    page=st.sampled_from([0, 8, 20, 64]),
    dtype=st.sampled_from(DTYPES),
)
def test_any_prefix_suffix_and_page(heads, prefix, lengths, head_dim, page, dtype):
    tensors, options = inputs(heads, prefix, lengths, head_dim, dtype), {}
    if page:
        tensors, options["block_table"] = into_pages(tensors, page)
    right(*tensors, **options)


def test_log_sum_exp_and_scale(device):
    tensors = inputs((4, 2), 50, [20, 3], 64, device=device)
    lse = right(*tensors, scale=0.3)
    q, prefix_k, _, k, _, _ = (x.double() for x in tensors)
    for b, n in enumerate([20, 3]):
        keys = torch.cat([prefix_k, k[b, :, :n]], 1).repeat_interleave(2, 0)
        expected = (q[b] @ keys.transpose(1, 2) * 0.3).logsumexp(-1)
        checks.check(lse[b], expected, 1e-5)


def test_one_part_far_above_the_other(device):
    """Where one part outweighs the other beyond fp32, the merge keeps the heavier one."""
    for part in (1, 3):
        tensors = list(inputs((2, 1), 40, [30], 64, device=device))
        tensors[part] = tensors[part] + 40 * tensors[0][0, :1, 0]
        right(*tensors, tolerance=1e-3)  # scores of 320 keep 5 digits in fp32


def test_any_strides(device):
    q, pk, pv, k, v, lengths = inputs((4, 2), 60, [31, 8], 64, torch.float16, device)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    pk, pv = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (pk, pv))
    right(q, pk, pv, k, v, lengths)


# --- errors in plain words -----------------------------------------------------------------

names = ("q", "prefix_k", "prefix_v", "k", "v", "lengths")
ok = dict(zip(names, inputs((4, 2), 6, [3, 5], 16), strict=True))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"q": ok["q"].repeat(1, 1, 2, 1)}, "one token a sequence"),
        ({"prefix_k": ok["prefix_k"][None]}, "must both be"),
        ({"prefix_v": ok["prefix_v"][:, :3]}, "must both be"),
        ({"prefix_k": ok["prefix_k"][:, :0], "prefix_v": ok["prefix_v"][:, :0]}, "no token"),
        ({"k": ok["k"][:, :1], "v": ok["v"][:, :1]}, "agree in KV heads"),
        ({"lengths": ok["lengths"] + 1000}, "lengths must be"),
        ({"prefix_k": ok["prefix_k"].half()}, "all be fp16, bf16 or fp32"),
        ({"q": ok["q"].to("meta")}, "one device"),
    ],
)
def test_errors_say_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        cascade.attention_cascade(**(ok | change))


# --- counted -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "heads, prefix, lengths, head_dim, dtype, page",
    [
        ((4, 2), 60, [10], 64, torch.bfloat16, None),
        ((4, 1), 64, [10, 30, 20], 128, torch.float16, None),
        ((8, 2), 32, [5, 60], 64, torch.bfloat16, 16),
        ((2, 2), 50, [60] * 4, 64, torch.float16, 64),
        ((2, 1), 30, [9, 14], 32, torch.float32, 8),
        ((4, 2), 900, [10] * 3, 64, torch.bfloat16, None),
    ],
    ids=str,
)
def test_meter_equals_work(heads, prefix, lengths, head_dim, dtype, page):
    tensors, options = inputs(heads, prefix, lengths, head_dim, dtype), {}
    if page:
        tensors, options["block_table"] = into_pages(tensors, page)
    counts = meter.count(cascade.attention_cascade, *tensors, **options)
    work = cascade.work(*heads, prefix, lengths, head_dim, dtype, page)
    splits, price = parts_of(tensors)
    extra = cascade.merge_work(len(lengths), heads[0], head_dim, dtype) + price
    assert (counts.read, counts.written) == (work.read + extra.read, work.written + extra.written)
    assert counts.launches == 3 + (splits > 1) and counts.waits_count == 0


def parts_of(tensors):
    """Splits of the prefix, and what they add by the decode kernel's own account; suffixes fit in
    a tile."""
    q, prefix_k = tensors[0].permute(2, 1, 0, 3), tensors[1][None]
    tile, kv_heads = decode.tile_of(q, prefix_k), prefix_k.shape[1]
    rows, prefix = q.shape[1] // kv_heads * q.shape[2], prefix_k.shape[2]
    sizes = (1, q.shape[1], kv_heads, q.shape[3], q.shape[2], q.dtype, q.dtype, q.device)
    splits = decode.default_splits(*sizes, prefix)
    return splits, decode.merge_work(kv_heads, rows, [prefix], q.shape[3], splits, tile)


def test_prefix_is_read_once_for_the_batch():
    """Bytes grow by a suffix a sequence, where plain decode reads the prefix for each."""
    tensors = inputs((4, 2), 512, [16] * 8, 64, torch.bfloat16)
    q, prefix_k, prefix_v, k, v, lengths = tensors
    shared = meter.count(cascade.attention_cascade, *tensors)
    whole = [torch.cat([p.expand(8, -1, -1, -1), x], 2) for p, x in ((prefix_k, k), (prefix_v, v))]
    plain = meter.count(decode.attention_decode, q, *whole, lengths + 512)
    assert plain.requested_read > 5 * shared.requested_read


# --- compiled ------------------------------------------------------------------------------


def test_merge_compiles():
    """The decode kernels' own tests compile the two parts."""
    tensors = inputs((4, 2), 300, [40] * 8, 128, torch.bfloat16)
    with interpreter.capture_launches() as launches:
        cascade.attention_cascade(*tensors, return_lse=True)
    assert launches[-1].kernel == "merge_pair_kernel"
    reports = compiled.compile_captured(launches[-1:], targets=[80, 90])
    assert [(report.refusal, report.spill_bytes) for report in reports] == [(None, 0)] * 2


# --- planted faults turn the checks red ----------------------------------------------------

FAULTS = {
    "prefix counted twice": ("of_prefix = tl.math.exp2(", "of_prefix = 2 * tl.math.exp2("),
    "no rescale in the merge": ("exp2((y - top)", "exp2((y - y)"),
    "rows of the prefix not turned": ("row % heads * batch + row // heads", "row"),
    "batch taken for heads": ("q.permute(2, 1, 0, 3)", "q.reshape(1, heads, batch, head_dim)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_noticed(fault, tmp_path):
    module = edited("attention_cascade", [FAULTS[fault]], tmp_path)
    tensors = inputs((4, 2), 50, [40, 3, 60], 64)
    right(*tensors)
    with pytest.raises(AssertionError, match="relative error"):
        right(*tensors, call=module.attention_cascade)

"""Paged decode: any page order and size, shared pages, tables that leave the pool refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_attention_decode import DTYPES, MERGES, devices, int32, merges, plant

from kernelbook import checks, compiled, meter, model
from kernelbook.kernels import _split_launch
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_paged as paged


def pool_of(lengths, page, spare=2):
    """A table of distinct pages in random order, -1 beyond each length, and the pool's size."""
    counts = [-(-n // page) for n in lengths]
    pool = sum(counts) + spare
    order = torch.randperm(pool)
    table = torch.full((len(lengths), max(counts) + 1), -1, dtype=torch.int32)
    for b, count in enumerate(counts):
        table[b, :count], order = order[:count], order[count:]
    return table, pool


def inputs(lengths, heads, kv_heads, head_dim, page, dtype=torch.float32, device="cpu"):
    """q, k_pages, v_pages, table; what lies beyond the lengths is poison."""
    table, pool = pool_of(lengths, page)
    q = torch.randn(len(lengths), heads, 1, head_dim).to(dtype)
    k, v = (torch.randn(pool, kv_heads, page, head_dim).to(dtype) for _ in range(2))
    unused = torch.ones(pool, page, dtype=torch.bool)
    for row, length in zip(table, lengths, strict=True):
        for token in range(length):
            unused[row[token // page], token % page] = False
    for x in (k, v):
        x.transpose(1, 2)[unused] = torch.nan
    return [x.to(device) for x in (q, k, v, table)]


def right(q, k, v, table, lengths, **options):
    expected = checks.reference64(paged.reference, q, k, v, table, lengths=lengths)
    with checks.poisoned_memory():
        out = paged.attention_paged(q, k, v, table, int32(lengths, q.device), **options)
    assert checks.every_element_written(out)
    checks.check(out, expected, dtype=q.dtype)


PAGES = [8, 16, 32, 64, 128, 256, 24, 100]


@st.composite
def pages_and_lengths(draw):
    """Lengths about the end of a page, and long ones."""
    page = draw(st.sampled_from(PAGES))
    near = st.sampled_from([1, page - 1, page, page + 1, 2 * page, 3 * page + 1])
    return page, draw(st.lists(st.one_of(near, st.integers(1, 600)), min_size=1, max_size=3))


@given(
    cut=pages_and_lengths(),
    kv_heads=st.integers(1, 2),
    group=st.sampled_from([1, 3, 4, 16]),
    head_dim=st.sampled_from([16, 64, 80, 128, 256]),
    dtype=st.sampled_from(DTYPES),
    splits=st.sampled_from([None, 1, 3, 8]),
    merge=st.sampled_from(MERGES),
)
def test_any_page_length_and_order(cut, kv_heads, group, head_dim, dtype, splits, merge):
    page, lengths = cut
    tensors = inputs(lengths, group * kv_heads, kv_heads, head_dim, page, dtype)
    right(*tensors, lengths, splits=splits, merge=merge)


@devices
@pytest.mark.parametrize("page", [8, 16, 64, 256])
def test_equals_contiguous_decode(page, device):
    """The same tiles in the same order: the same numbers, to the bit."""
    lengths = [500, 13]
    q, k, v, table = inputs(lengths, 8, 2, 64, page, torch.float16, device)
    whole = [paged.gather(x, table).nan_to_num() for x in (k, v)]
    options = {"splits": 3, "return_lse": True}
    lengths = int32(lengths, device)
    found = paged.attention_paged(q, k, v, table, lengths, **options)
    expected = decode.attention_decode(q, *whole, lengths, **options)
    assert all(map(torch.equal, found, expected))


@devices
@merges
def test_length_1_in_a_grid_of_64_splits(merge, device):
    q, k, v, table = inputs([1, 1], 4, 2, 16, 128, device=device)
    table = torch.nn.functional.pad(table, (0, 63), value=-1)
    right(q, k, v, table, [1, 1], splits=64, merge=merge)


def test_shared_pages():
    """Two sequences with a prefix in common, and one that is the same page again and again."""
    page, lengths = 16, [50, 60, 64]
    q, k, v, _ = inputs([64, 64, 64], 4, 2, 32, page)
    table = int32([[3, 1, 4, 5], [3, 1, 6, 0], [2, 2, 2, 2]])
    k, v = k.nan_to_num(0.5), v.nan_to_num(0.5)
    right(q, k, v, table, lengths, splits=2)
    counts = meter.count(paged.attention_paged, q, k, v, table, int32(lengths), splits=1)
    each = 2 * 2 * 32 * 4  # bytes of a token's keys and values
    tokens = 32 + 18 + 28 + 16  # the common pages, the two ends, one page four times
    table_bytes, others = 4 * 4 * 3, 4 * 3 + q.numel() * 4
    assert counts.read == tokens * each + table_bytes + others


def test_a_pool_laid_out_by_tokens():
    lengths = [70, 9]
    q, k, v, table = inputs(lengths, 4, 2, 32, 16)
    k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    assert not k.is_contiguous()
    right(q, k, v, table, lengths)
    right(q, k, v, table.T.contiguous().T, lengths)


@devices
def test_the_models_text_is_unchanged(device):
    """Keys and values laid on 16-token pages in random order at each call, in fp32."""

    def attention(q, k, v, causal, scale):
        batch, heads, tokens, head_dim = k.shape
        count = -(-tokens // 16)
        table = torch.randperm(batch * count, device=device).int().view(batch, count)
        pools = []
        for x in (k, v):
            x = torch.nn.functional.pad(x, (0, 0, 0, count * 16 - tokens))
            pages = x.view(batch, heads, count, 16, head_dim).transpose(1, 2).flatten(0, 1)
            pools.append(torch.empty_like(pages).index_copy_(0, table.flatten().long(), pages))
        lengths = int32([tokens] * batch, device)
        return paged.attention_paged(q, *pools, table, lengths, causal=causal, scale=scale)

    size = (8, 200) if device == "cuda" else (1, 4)
    assert model.text_unchanged(attention, *size, prompt_length=40, device=device)


def test_several_causal_queries():
    lengths = [40, 33]
    _, k, v, table = inputs(lengths, 4, 2, 32, 16)
    q = torch.randn(2, 4, 5, 32)
    expected = checks.reference64(paged.reference, q, k, v, table, lengths=lengths, causal=True)
    checks.check(paged.attention_paged(q, k, v, table, lengths, causal=True), expected)


# --- errors in plain words -----------------------------------------------------------------

ok = inputs([20, 40], 4, 2, 16, 16)


@pytest.mark.parametrize(
    "change, lengths, message",
    [
        (lambda q, k, v, t: (q, k, v, t.long()), [20, 40], r"int32 \[2, pages\]"),
        (lambda q, k, v, t: (q, k, v, t[:1]), [20, 40], r"int32 \[2, pages\]"),
        (lambda q, k, v, t: (q, k, v, t + 10), [20, 40], "the pool has pages 0 to 6"),
        (lambda *qkvt: qkvt, [20, 60], "sequence 1 names page -1"),
        (lambda *qkvt: qkvt, [20, 65], "from 1 to 64"),
        (lambda *qkvt: qkvt, [0, 40], "from 1 to 64"),
        (lambda *qkvt: qkvt, None, "lengths"),
        (lambda q, k, v, t: (q, k[:, :, :4], v[:, :, :4], t), [4, 4], "8 to 256 tokens, got 4"),
        (lambda q, k, v, t: (q.half(), k, v, t), [20, 40], "all be fp16, bf16 or fp32"),
        (lambda q, k, v, t: (q, k.to("meta"), v, t), [20, 40], "one device"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_say_what_is_wrong(change, lengths, message):
    with pytest.raises(ValueError, match=message), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_split_launch, "split_kv_kernel", None)  # nothing may be launched
        paged.attention_paged(*change(*ok), lengths)


# --- counted, compiled, and faults noticed -------------------------------------------------


@pytest.mark.parametrize(
    "lengths, heads, kv_heads, head_dim, page, dtype",
    [
        ([100], 8, 2, 64, 16, torch.float16),
        ([300, 1], 4, 1, 128, 8, torch.bfloat16),
        ([257], 4, 4, 80, 256, torch.float16),
        ([5, 64, 129], 2, 2, 32, 64, torch.float32),
        ([512], 16, 1, 64, 128, torch.bfloat16),
        ([130], 4, 2, 64, 24, torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize("splits", [1, 3])
def test_meter_equals_work(lengths, heads, kv_heads, head_dim, page, dtype, splits):
    q, k, v, table = inputs(lengths, heads, kv_heads, head_dim, page, dtype)
    counts = meter.count(paged.attention_paged, q, k, v, table, int32(lengths), splits=splits)
    work = paged.work(len(lengths), heads, kv_heads, lengths, head_dim, dtype, page)
    group = heads // kv_heads
    price = decode.merge_work(
        kv_heads, group, lengths, head_dim, splits, decode.tile_of(q, k, page)
    )
    again = 4 * len(lengths) * (counts.launches - 1)  # the merge reads the lengths, too
    assert (counts.read, counts.written) == (work.read + price.read + again, (work + price).written)
    assert (
        counts.launches == (1 if splits == 1 else 2) and not counts.waits and not counts.operations
    )


def test_compiles_within_each_gpus_shared_memory():
    sets = [inputs([300], 8, 2, 128, page, torch.bfloat16) for page in (16, 128, 24)]
    reports = compiled.compile_launches(
        lambda: [paged.attention_paged(*tensors, int32([300])) for tensors in sets],
        targets=[80, 90],
    )
    assert {report.kernel for report in reports} == {"split_kv_kernel", "merge_kernel"}
    assert not any(report.refusal for report in reports)
    assert max(report.spill_bytes for report in reports) <= 256


FAULTS = {
    "table off by one": ("mask=token < end, other=0)", "mask=token < end, other=0) * 0 + 1"),
    "page a token late": ("token // PAGE * stride", "tl.maximum(token - 1, 0) // PAGE * stride"),
    "page of this tile again": (
        "ahead = page_of(table, start + BLOCK_N, end",
        "ahead = page_of(table, start, end",
    ),
    "place on the page ignored": ("(start + row) % PAGE * stride", "row % 8 * stride"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_the_kernel_is_noticed(fault, tmp_path, monkeypatch):
    q, k, v, table = inputs([400, 300], 4, 2, 64, 16)
    k, v = k.nan_to_num(0.5), v.nan_to_num(0.5)
    right(q, k, v, table, [400, 300], splits=2)
    plant(FAULTS[fault], tmp_path, monkeypatch)
    with pytest.raises(AssertionError, match=r"relative error .* tolerance"):
        right(q, k, v, table, [400, 300], splits=2)

"""Tree verification: each token sees the context and its ancestors, on any layout of the cache."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic_decode import edited, paged

from kernelbook import backend, checks, compiled, meter
from kernelbook.kernels import _partials, _split_launch, attention_prefill
from kernelbook.kernels import attention_tree as tree

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
gpu = pytest.mark.skipif(not backend.GPU, reason="no GPU: tree verification was not run compiled")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=gpu)])
def device(request):
    return request.param


def random_tree(tokens: int) -> torch.Tensor:
    """Ancestor bits of a tree whose tokens have random parents before them."""
    return tree.pack_ancestors([int(torch.randint(-1, i, ())) if i else -1 for i in range(tokens)])


def inputs(heads, lengths, tokens, capacity, head_dim, dtype=torch.float32, device="cpu"):
    """q, k, v, ancestors, lengths; cache entries behind a sequence's tree hold NaN."""
    query_heads, kv_heads = heads
    batch = len(lengths)
    q = torch.randn(batch, query_heads, tokens, head_dim, device=device).to(dtype)
    k, v = (
        torch.randn(batch, kv_heads, capacity, head_dim, device=device).to(dtype) for _ in range(2)
    )
    for b, length in enumerate(lengths):
        k[b, :, length + tokens :] = v[b, :, length + tokens :] = float("nan")
    ancestors = torch.stack([random_tree(tokens) for _ in lengths]).to(device)
    return q, k, v, ancestors, torch.tensor(lengths, dtype=torch.int32, device=device)


def right(*tensors, call=tree.attention_tree, **options):
    """Run into poisoned memory and compare output and log-sum-exp with float64."""
    q = tensors[0]
    expected, log = checks.reference64(tree.reference, *tensors, return_lse=True, **options)
    with checks.poisoned_memory():
        out, lse = call(*tensors, return_lse=True, **options)
    checks.check(out, expected, dtype=q.dtype)
    checks.check(lse, log, 1e-5 if q.dtype == torch.float32 else 1e-3)


def into_pages(tensors, page: int):
    """The same call on a paged cache: pools [pages, Hkv, page size, D] and the block table."""
    q, k, v, *rest = tensors
    (k, v), table = paged([k.transpose(1, 2), v.transpose(1, 2)], page)
    return (q, k.transpose(1, 2), v.transpose(1, 2), *rest), table


SHAPES = [  # (query heads, KV heads), lengths, tree tokens, capacity, head_dim
    ((1, 1), [0], 1, 1, 64),
    ((2, 1), [129, 1], 5, 140, 64),
    ((4, 2), [40, 0], 64, 110, 32),
    ((8, 1), [100], 17, 117, 80),
    ((2, 2), [33], 63, 96, 128),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_right_on_odd_sizes(shape, dtype, device):
    right(*inputs(*shape, dtype=dtype, device=device))


@given(
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    lengths=st.lists(st.integers(0, 90), min_size=1, max_size=2),
    tokens=st.integers(1, 30),
    head_dim=st.sampled_from([8, 16, 40]),
    parts=st.integers(1, 4),
    page=st.sampled_from([0, 8, 16, 20, 128]),
    dtype=st.sampled_from(DTYPES),
)
def test_any_length_tree_split_and_page(heads, lengths, tokens, head_dim, parts, page, dtype):
    tensors = inputs(heads, lengths, tokens, 120, head_dim, dtype)
    options = {}
    if page:
        tensors, options["block_table"] = into_pages(tensors, page)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "splits", lambda *_: parts)
        right(*tensors, **options)


@pytest.mark.parametrize("page", [8, 64, 256])
def test_lengths_around_a_page(page, device):
    lengths = [page - 1, page, page + 1]
    tensors = inputs((4, 1), lengths, 5, page + 6, 32, torch.float16, device)
    tensors, table = into_pages(tensors, page)
    right(*tensors, block_table=table)


def test_a_chain_is_causal_attention():
    q, k, v, _, lengths = inputs((4, 2), [50], 20, 70, 64)
    chain = tree.pack_ancestors(list(range(-1, 19)))[None]
    expected = checks.reference64(attention_prefill.reference, q, k, v, causal=True)
    checks.check(tree.attention_tree(q, k, v, chain, lengths), expected)


def test_all_parts_but_one_empty(device, monkeypatch):
    monkeypatch.setattr(tree, "splits", lambda *_: 64)
    right(*inputs((4, 2), [0, 3], 2, 5000, 64, torch.bfloat16, device))


def test_shared_tree_and_any_strides(device):
    q, k, v, ancestors, lengths = inputs((4, 2), [60, 31], 9, 80, 64, torch.float16, device)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    right(q, k, v, ancestors[:1].expand(2, -1), lengths, scale=0.2)


def test_64_tokens_use_every_bit():
    chain = tree.pack_ancestors(list(range(-1, 63)))
    assert chain[63] == -1 and chain[62] == 2**63 - 1
    assert tree.pack_ancestors([-1, 0, 0, 1, -1]).tolist() == [1, 3, 5, 11, 16]
    with pytest.raises(ValueError, match="before its child"):
        tree.pack_ancestors([-1, 1])


def test_lengths_beyond_the_cache_read_what_there_is(device, monkeypatch):
    monkeypatch.setattr(_partials, "host_values", lambda _: None)  # as on a GPU
    q, k, v, ancestors, lengths = inputs((2, 1), [40], 8, 48, 64, torch.float16, device)
    over = tree.attention_tree(q, k, v, ancestors, lengths + 1000)
    assert torch.equal(over, tree.attention_tree(q, k, v, ancestors, lengths))


# --- errors in plain words -----------------------------------------------------------------

names = ("q", "k", "v", "ancestors", "lengths")
ok = dict(zip(names, inputs((4, 2), [3, 5], 4, 9, 16), strict=True))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"q": ok["q"][0]}, "q must be"),
        ({"k": ok["k"][:1], "v": ok["v"][:1]}, "agree in batch"),
        ({"q": ok["q"][:, :3]}, "multiple of KV heads, got 3 and 2"),
        ({"q": ok["q"].repeat(1, 1, 17, 1)}, "a tree has 1 to 64 tokens"),
        ({"q": ok["q"].half()}, "must all be fp16, bf16 or fp32"),
        ({"scale": -1.0}, "scale must be positive"),
        ({"lengths": ok["lengths"] + 1}, "lengths must be from 0 to 5"),
        ({"lengths": ok["lengths"].long()}, "lengths must be int32"),
        ({"ancestors": ok["ancestors"].int()}, "ancestors must be int64"),
        ({"ancestors": ok["ancestors"][:, :3]}, r"ancestors must be int64 \[2, 4\]"),
        ({"ancestors": ok["ancestors"] & ~2}, "token 1 does not see itself"),
        ({"ancestors": ok["ancestors"] | 8}, "token 0 sees one after it"),
        ({"block_table": torch.zeros(2, 1, dtype=torch.int64)}, "block_table must be int32"),
        ({"block_table": torch.full((2, 1), 2, dtype=torch.int32)}, "names page 2"),
        ({"k": ok["k"][:, :, :3], "v": ok["v"][:, :, :3]}, "do not fit in a cache of 3"),
        ({"k": ok["k"].to("meta")}, "one device"),
    ],
)
def test_errors_say_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        tree.attention_tree(**(ok | change))


# --- counted -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "heads, lengths, tokens, head_dim, dtype, page, parts",
    [
        ((4, 2), [120], 8, 64, torch.bfloat16, None, 1),
        ((4, 2), [64, 10], 16, 128, torch.float16, None, 1),
        ((8, 2), [50, 100], 3, 64, torch.bfloat16, 16, 1),
        ((2, 2), [192], 64, 64, torch.float16, 64, 1),
        ((2, 1), [33], 5, 32, torch.float32, 8, 1),
        ((4, 2), [248], 8, 64, torch.bfloat16, None, 2),
    ],
    ids=str,
)
def test_meter_equals_work(heads, lengths, tokens, head_dim, dtype, page, parts, monkeypatch):
    monkeypatch.setattr(tree, "splits", lambda *_: parts)
    tensors, options = inputs(heads, lengths, tokens, 256, head_dim, dtype), {}
    pairs = sum(bin(bits & (2**64 - 1)).count("1") for bits in tensors[3].flatten().tolist())
    if page:
        tensors, options["block_table"] = into_pages(tensors, page)
    counts = meter.count(tree.attention_tree, *tensors, **options)
    work = tree.work(lengths, *heads, tokens, head_dim, dtype, page_size=page)
    extra = _partials.partial_bytes(len(lengths) * heads[0] * tokens, parts, head_dim)
    assert (counts.read, counts.written) == (work.read + extra, work.written + extra)
    assert counts.launches == (1 if parts == 1 else 2) and counts.waits_count == 0
    if len(lengths) == 1:
        useful = tree.work(lengths, *heads, tokens, head_dim, dtype, tree_pairs=pairs)
        assert useful.flops <= work.flops <= counts.flops


def test_context_is_read_once_for_the_whole_tree():
    """Requested bytes too: the group's heads and all tree tokens share one pass over KV."""
    tensors = inputs((4, 1), [240], 16, 256, 64, torch.bfloat16)
    counts = meter.count(tree.attention_tree, *tensors)
    kv = 2 * 256 * 64 * 2
    assert kv <= counts.kernels[0].requested_read < 1.7 * kv  # with q, once for each part


# --- compiled ------------------------------------------------------------------------------


def launching(heads, tokens, head_dim, dtype, page):
    """A function that launches one configuration, merge included."""
    tensors, options = inputs(heads, [5], tokens, 4096, head_dim, dtype), {}
    if page:
        tensors, options["block_table"] = into_pages(tensors, page)
    return lambda: tree.attention_tree(*tensors, **options)


@pytest.mark.parametrize(
    "heads, tokens, head_dim, dtype, page, targets",
    [
        ((4, 1), 64, 128, torch.bfloat16, 16, [80, 90]),
        ((4, 1), 16, 256, torch.bfloat16, None, [80]),
        ((2, 1), 8, 128, torch.float32, None, [90]),
    ],
    ids=str,
)
def test_compiles_within_each_gpus_shared_memory(
    heads, tokens, head_dim, dtype, page, targets, monkeypatch
):
    monkeypatch.setattr(
        _split_launch, "has_dependent_launch", lambda q: backend.capability() >= (9, 0)
    )
    launch = launching(heads, tokens, head_dim, dtype, page)
    reports = compiled.compile_launches(launch, targets=targets)
    assert [report.refusal for report in reports] == [None] * 2 * len(targets)
    assert max(report.spill_bytes for report in reports) <= 64


# --- planted faults turn the checks red ----------------------------------------------------

FAULTS = {
    "mask shifted by one": ("place = key - length ", "place = key - length + 1 "),
    "siblings seen": ("| (bit == 1)", "| (bit >= 0)"),
    "last key left out": ("(key < end)[None, :], s", "(key < end - 1)[None, :], s"),
    "bits of the row, not the token": ("+ token * stride_am", "+ row % 7 * stride_am"),
    "no rescale": ("p, acc, l, m = online", "p, _, l, m = online"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_the_kernel_is_noticed(fault, tmp_path, monkeypatch):
    module = edited("attention_tree", [FAULTS[fault]], tmp_path)
    tensors = inputs((4, 2), [150], 24, 200, 64, torch.float16)
    for each in (tree, module):  # one part: it has several tiles
        monkeypatch.setattr(each, "splits", lambda *_: 1)
    right(*tensors)
    with pytest.raises(AssertionError, match="relative error"):
        right(*tensors, call=module.attention_tree)

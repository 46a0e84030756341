"""Bytes of layouts against the kernels' own work, and against tensors; waste of pages."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelbook import kv_bytes
from kernelbook.kernels import attention_mla, attention_paged, attention_quantized, attention_tree
from kernelbook.kernels.kv_quantize import kv_quantize

BF16 = torch.bfloat16
lengths = st.lists(st.integers(1, 3000), min_size=1, max_size=6)


@given(lengths, st.sampled_from([8, 16, 256]))
def test_paged_work_reads_these_bytes(lengths, page):
    sizes = (len(lengths), 4, 2, lengths, 32, BF16)
    q = len(lengths) * 4 * 32 * 2
    for kv, work in (
        ("bf16", attention_paged.work(*sizes, page)),
        ("int8", attention_quantized.work(*sizes, page)),
    ):
        cache = sum(lengths) * kv_bytes.gqa_token_bytes(2, 32, kv)
        assert work.read == q + cache + kv_bytes.metadata_bytes(lengths, page)


@given(lengths, st.sampled_from([0, 64]), st.sampled_from(["bf16", "int8"]))
def test_mla_work_reads_these_bytes(lengths, page, kv):
    work = attention_mla.work(lengths, 16, BF16, quantized=kv == "int8", page_size=page or None)
    cache = sum(lengths) * kv_bytes.mla_token_bytes(kv=kv)
    q = len(lengths) * 16 * 576 * 2
    assert work.read == q + cache + kv_bytes.metadata_bytes(lengths, page)


@given(lengths, st.sampled_from([0, 16]))
def test_tree_work_reads_these_bytes(lengths, page):
    work = attention_tree.work(lengths, 4, 2, 16, 32, BF16, page_size=page or None)
    cache = (sum(lengths) + 16 * len(lengths)) * kv_bytes.gqa_token_bytes(2, 32)
    q = len(lengths) * 4 * 16 * 32 * 2
    assert work.read == q + cache + kv_bytes.metadata_bytes(lengths, page, tree_tokens=16)


@pytest.mark.parametrize(("kv", "to"), [("int8", torch.int8), ("fp8", torch.float8_e4m3fn)])
def test_a_token_is_what_quantizing_writes(kv, to):
    codes, scale = kv_quantize(torch.randn(1, 8, 1, 128), to)
    assert 2 * (codes.nbytes + scale.nbytes) == kv_bytes.gqa_token_bytes(8, 128, kv) == 2112


def test_sizes_that_the_chapter_names():
    assert kv_bytes.gqa_token_bytes() == 4096
    assert kv_bytes.mla_token_bytes() == 1152
    assert kv_bytes.mla_token_bytes(kv="int8") == 512 + 4 + 128
    with pytest.raises(ValueError, match="kept as bf16, int8, fp8, got 'int4'"):
        kv_bytes.gqa_token_bytes(kv="int4")


@given(lengths, st.sampled_from([1, 8, 16, 64, 256]), st.integers(1, 5000))
def test_waste_is_the_end_of_each_last_page(lengths, page, token_bytes):
    waste = kv_bytes.page_waste(lengths, page, token_bytes)
    assert waste.wasted_bytes == sum(-n % page for n in lengths) * token_bytes
    assert 0 <= waste.wasted_bytes <= len(lengths) * (page - 1) * token_bytes
    assert waste.allocated_bytes == waste.pages * page * token_bytes
    assert waste.table_bytes == kv_bytes.metadata_bytes(lengths, page) - 4 * len(lengths)


def test_waste_by_hand():
    waste = kv_bytes.page_waste([1, 16, 17], 16, 10)
    assert (waste.pages, waste.used_bytes, waste.wasted_bytes, waste.percent) == (4, 340, 300, 47)
    assert kv_bytes.page_waste([], 16, 10).percent == 0
    with pytest.raises(ValueError, match="a page holds 1 token or more"):
        kv_bytes.page_waste([3], 0, 10)


def test_layouts_in_words():
    found = kv_bytes.layouts([8192] * 16)
    assert found["paged_16"].metadata_bytes == 64 + 4 * 16 * 512
    assert found["paged_256"].metadata_bytes == 64 + 4 * 16 * 32
    assert found["tree_paged_16"].metadata_bytes == 64 + 4 * 16 * 513 + 8 * 16 * 16
    assert [one.kind for one in found.values()].count("changes the model") == 8
    text = kv_bytes.layout_table(found)
    assert len(text.splitlines()) == 2 + len(found) and "gather, dequantize" in text
    assert len(kv_bytes.waste_table([100, 7], (8, 16), 4096).splitlines()) == 4

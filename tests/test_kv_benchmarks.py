"""Benchmarks of paged, quantized, MLA, tree and cascade attention: all but the times, dry."""

import pytest
import torch
from dry_benchmark import dry, small_heads, variants  # noqa: F401

from benchmarks import (
    _kv,
    _rotated,
    attention_cascade,
    attention_mla,
    attention_paged,
    attention_quantized,
    attention_tree,
)
from kernelbook import backend

ALL = (attention_cascade, attention_mla, attention_paged, attention_quantized, attention_tree)


@pytest.fixture
def nothing_skipped(capsys):
    yield
    assert "skipped" not in capsys.readouterr().out


@pytest.mark.parametrize("batch", [1, 2])
def test_paged(dry, monkeypatch, nothing_skipped, batch):  # noqa: F811
    small_heads(monkeypatch)
    attention_paged.measure(dry, batch, 256)
    rows = variants(dry, "attention_paged")
    assert set(rows) == set(attention_paged.CALLS)
    assert {name for name, row in rows.items() if row["peer"]} == {"gather_sdpa", "sdpa_cudnn"}
    kv = 2 * 2 * batch * 256 * 32 * 2
    assert rows["page_8"]["bytes"] - rows["contiguous"]["bytes"] == 4 * batch * 256 // 8
    gathered = rows["gather_sdpa"]["bytes"] - rows["page_16"]["bytes"]
    assert gathered == 2 * kv, "pages are read and written before they are attended to"


def test_quantized(dry, monkeypatch, nothing_skipped):  # noqa: F811
    small_heads(monkeypatch)
    attention_quantized.measure(dry, 2, 64)
    rows = variants(dry, "attention_quantized")
    assert set(rows) == set(attention_quantized.CALLS)
    assert rows["int8"]["bytes"] < rows["bf16"]["bytes"] < rows["dequantize_sdpa"]["bytes"]
    attention_quantized.quantizing(dry, 2, 3)
    assert set(variants(dry, "kv_quantize")) == {"int8", "fp8"}


def test_mla(dry, monkeypatch, nothing_skipped):  # noqa: F811
    monkeypatch.setattr(attention_mla, "LATENT", 64)
    monkeypatch.setattr(attention_mla, "ROPE", 16)
    attention_mla.measure(dry, 4, 2, 128)
    rows = variants(dry, "attention_mla")
    assert set(rows) == set(attention_mla.CALLS)
    assert {name for name, row in rows.items() if row["peer"]} == {"torch_absorbed", "copy"}


@pytest.mark.parametrize("tokens", [4, 16])
def test_tree(dry, monkeypatch, nothing_skipped, tokens):  # noqa: F811
    for name, size in (("QUERY_HEADS", 4), ("KV_HEADS", 2), ("HEAD_DIM", 32)):
        monkeypatch.setattr(attention_tree, name, size)
    attention_tree.measure(dry, 2, 128, tokens)
    rows = variants(dry, "attention_tree")
    assert set(rows) == set(attention_tree.CALLS)


def test_cascade(dry, monkeypatch, nothing_skipped):  # noqa: F811
    for name, size in (("QUERY_HEADS", 4), ("KV_HEADS", 2), ("HEAD_DIM", 32), ("SUFFIX", 64)):
        monkeypatch.setattr(attention_cascade, name, size)
    attention_cascade.measure(dry, 3, 128)
    rows = variants(dry, "attention_cascade")
    assert set(rows) == set(attention_cascade.CALLS)
    prefix = 2 * 2 * 128 * 32 * 2  # keys and values of 2 heads, bf16
    assert rows["plain"]["bytes"] - rows["cascade"]["bytes"] == 2 * prefix, "read thrice, or once"


def test_a_wrong_variant_is_not_measured(dry, monkeypatch, capsys):  # noqa: F811
    """A page's number off by one: right shapes, wrong numbers."""
    small_heads(monkeypatch)
    right = attention_paged.on_pages

    def shifted(q, k, v, lengths, tables):
        return right(16, q, k, v, lengths, {16: tables[16].roll(1, 0)})

    monkeypatch.setitem(attention_paged.CALLS, "page_16", shifted)
    attention_paged.measure(dry, 2, 256)
    assert "page_16" not in variants(dry, "attention_paged")
    assert "page_16 skipped, AssertionError: relative error" in capsys.readouterr().out


def test_a_cuda_error_is_not_swallowed(monkeypatch):
    def broken(x):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        _rotated.passing({"broken": broken}, (torch.ones(2),))


def test_last_sequence_is_checked_too(dry):  # noqa: F811
    """Only the last sequence's length is ignored: the first one alone would look right."""
    lengths = torch.tensor([64, 64, 32], dtype=torch.int32)
    inputs = [torch.randn(3, 2, n, 16, dtype=torch.bfloat16) for n in (1, 64, 64)]
    calls = {
        "right": lambda *x: _kv.decode.attention_decode(*x, lengths),
        "wrong": _kv.decode.attention_decode,
    }
    expected = dict.fromkeys(calls, lambda *x: _kv.attended(*x, lengths))
    assert list(_rotated.passing(calls, inputs, expected)) == ["right"]


@pytest.mark.skipif(backend.GPU, reason="measures where there is a GPU")
@pytest.mark.parametrize("benchmark", ALL, ids=lambda module: module.__name__)
def test_without_a_gpu_nothing_is_recorded(benchmark, capsys):
    benchmark.run(None)
    assert "no GPU" in capsys.readouterr().out

"""Benchmarks without a GPU: everything but the clock. Kernels are interpreted at tiny sizes."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import _kv
from kernelbook import records, timing


def in_pytorch(q, k, v, mask=None, gqa=True):
    """In place of cuDNN's kernel."""
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=gqa)


def rotate(make_inputs, bytes_each):
    assert bytes_each > 0
    return timing.Rotation([make_inputs(), make_inputs()])


def side_by_side(variants, **options):
    """The first takes 1 µs, the second 2, ...: all ran once already, so here only one does."""
    assert options.pop("graph")
    for call in list(variants.values())[:1]:
        call()
    return {name: timing.Timing.of([float(i)], "dry") for i, name in enumerate(variants, 1)}


@pytest.fixture
def dry(monkeypatch, tmp_path):
    """A writer of records; clock, rotation and cuDNN are replaced."""
    monkeypatch.setattr(timing, "rotate", rotate)
    monkeypatch.setattr(timing, "side_by_side", side_by_side)
    monkeypatch.setattr(_kv, "cudnn", in_pytorch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    info = {"run_info": True, "run": "dry", "gpu": "none", "date": "2026-11-29"}
    with records.Writer(tmp_path / "rows.jsonl", info) as writer:
        yield writer


def small_heads(monkeypatch) -> dict:
    """4 query heads on 2 KV heads of 32 in the benchmarks of layouts."""
    heads = {"query_heads": 4, "kv_heads": 2, "head_dim": 32}
    for name, size in heads.items():
        monkeypatch.setitem(_kv.HEADS, name, size)
    return heads


def variants(writer, op: str) -> dict:
    """Variant -> row of one op."""
    return {row["variant"]: row for row in writer.rows if row["op"] == op}

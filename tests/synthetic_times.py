"""Benchmarks without a GPU: their code runs on small CPU tensors, only times are invented."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import _decode, _warm
from kernelbook import backend, records, timing

INFO = {"run_info": True, "run": "invented", "gpu": "none", "date": "2026-11-29T00:00:00Z"}
HEADS = {"query_heads": 4, "kv_heads": 2, "head_dim": 16}


def _side_by_side(calls: dict, **options) -> dict:
    """Runs each call once; the time says in which order."""
    assert options["graph"]
    for call in calls.values():
        call()
    return {name: timing.Timing.of([1.0 + i], "invented") for i, name in enumerate(calls)}


def _compile_all(calls, *inputs) -> None:
    """What is to be compiled ahead must run; calls on given inputs run later anyway."""
    for call in () if inputs else calls:
        call()


def _plain_sdpa(q, k, v, **options):
    return scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small heads, no GPU asked for anything, PyTorch's own attention in place of its backends."""
    monkeypatch.setattr(backend, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(timing, "rotate", lambda make, bytes_each: timing.Rotation([make()]))
    monkeypatch.setattr(timing, "side_by_side", _side_by_side)
    monkeypatch.setattr(_warm, "compile_all", _compile_all)
    monkeypatch.setattr(_decode, "HEADS", HEADS)
    monkeypatch.setattr(_decode, "has_gpu", lambda _: True)
    for name in ("cudnn", "flash"):
        monkeypatch.setattr(_decode, name, _plain_sdpa)


def writer(folder: Path) -> records.Writer:
    """Checks every row as for the shipped records; they are in `.rows`."""
    return records.Writer(folder / "rows.jsonl", INFO)

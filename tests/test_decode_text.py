"""The benchmark of the text through caches: its whole path at small sizes, times made up."""

import pytest
import torch

from benchmarks import decode_text
from kernelbook import backend, records, timing
from kernelbook.model import compare, tiny

INFO = {"run_info": True, "run": "x", "gpu": "y"}


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    """The tiny model on the CPU, and a clock that is made up."""
    monkeypatch.setattr(decode_text.model, "tiny", lambda dtype: tiny(dtype, "cpu"))
    monkeypatch.setattr(decode_text, "PROMPT_LENGTH", 48)
    monkeypatch.setattr(decode_text, "NODES", (4,))
    monkeypatch.setattr(
        decode_text,
        "in_turn",
        lambda calls, samples, warm: {name: timing.Timing.of([1.0] * samples) for name in calls},
    )


@pytest.fixture
def writer(tmp_path):
    return records.Writer(tmp_path / "rows.jsonl", INFO)


def test_texts(writer):
    decode_text.texts(writer, captured=False, reference=True, tokens=6, count=2)
    rows = {(row["variant"], row["shape"]["shared"]): row for row in writer.rows}
    expected = [("plain", 0), ("split", 0), ("paged", 0), ("plain", 40), ("shared_prefix", 40)]
    assert list(rows) == expected and len(writer.rows) == 5
    assert all(row["same_text"] is True and row["dtype"] == "fp32" for row in writer.rows)
    assert rows["split", 0]["shape"] == {
        "prompts": 2,
        "tokens": 6,
        "prompt_length": 48,
        "shared": 0,
    }


def test_a_text_that_differs_is_recorded_so(writer, monkeypatch):
    def wrong(llama, start, tokens, make_cache, shared=0, captured=False):
        return torch.full((2, tokens), int(shared > 0))

    monkeypatch.setattr(decode_text.compare, "continued", wrong)
    decode_text.texts(writer, captured=False, reference=True, tokens=6, count=2)
    assert {row["variant"]: row["same_text"] for row in writer.rows} == {
        "plain": True,
        "split": True,
        "paged": True,
        "shared_prefix": False,
    }


def test_replays_are_tried_through_every_cache():
    ways = decode_text.ways(captured=True)
    replayed = [name for name, (_, _, captured) in ways.items() if captured]
    assert replayed == ["split_captured", "paged_captured", "shared_prefix_captured"]
    assert [n for n, way in ways.items() if way[1]] == ["shared_prefix", "shared_prefix_captured"]


def test_accuracy(writer, monkeypatch):
    accuracy = compare.kv_accuracy
    monkeypatch.setattr(
        decode_text.model, "kv_accuracy", lambda *sizes: accuracy(*sizes, device="cpu")
    )
    decode_text.accuracy(writer, reference=True, length=24, count=2)
    rows = {(row["variant"], row["dtype"]): row for row in writer.rows}
    names = ("unquantized", "int8", "fp8")
    assert list(rows) == [(name, dtype) for dtype in ("fp32", "bf16") for name in names]
    for dtype, plain in (("fp32", 4), ("bf16", 2)):
        errors = [rows[name, dtype]["logit_error"] for name in names]
        assert errors == sorted(errors) and errors[0] < 0.01 and errors[1] > 1e-4
        assert rows["int8", dtype]["agreement"] > 0.8 and rows["int8", dtype]["tokens"] == 48
        # 4 layers × 2 KV heads × (K and V) × (64 numbers, and a scale where there are codes)
        kept = {name: rows[name, dtype]["kv_bytes_per_token"] for name in names}
        assert kept == {"unquantized": 16 * 64 * plain, "int8": 16 * 68, "fp8": 16 * 68}


def test_trees(writer):
    decode_text.trees(writer, reference=True, tokens=10, count=2)
    rows = {(row["variant"], row["shape"]["nodes"]): row for row in writer.rows}
    assert list(rows) == [
        ("one_token", 1),
        ("contiguous", 4),
        ("paged", 16),
        ("contiguous_chain", 16),
    ]
    assert all(row["same_text"] is True for row in writer.rows)
    one = rows["one_token", 1]
    assert one["tokens_per_step"] == 1 and one["steps"] == 18
    assert one["drafted"] == one["accepted"] == 0
    for row in writer.rows:
        assert row["steps"] + row["accepted"] == 18 and row["accepted"] <= row["drafted"]
    assert rows["paged", 16]["drafted"] > rows["contiguous", 4]["drafted"] > 0


@pytest.mark.skipif(backend.GPU, reason="measures where there is a GPU")
def test_without_a_gpu_nothing_is_recorded(capsys):
    decode_text.run(None)
    assert "no GPU" in capsys.readouterr().out

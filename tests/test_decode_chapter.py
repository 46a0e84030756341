"""The benchmark of chapter 04's own kernels measures what the chapter builds, and checks it."""

from types import SimpleNamespace

import pytest
from synthetic_times import install, writer

from benchmarks import _chapter, decode_chapter
from kernelbook import timeline


@pytest.fixture
def rows(monkeypatch, tmp_path):
    """What a run on small tensors writes; times are invented."""
    install(monkeypatch)
    monkeypatch.setattr(decode_chapter, "SHAPES", ((1, 300), (2, 130)))
    monkeypatch.setattr(decode_chapter, "TRACED", (1, 130))
    monkeypatch.setattr(decode_chapter, "TRACE", tmp_path / "trace.json")
    traced = []

    def profile(fn):
        traced.append(fn())
        return SimpleNamespace(save=lambda path: path.write_text("{}"))

    monkeypatch.setattr(timeline, "profile", profile)
    target = writer(tmp_path)
    decode_chapter.run(target)
    assert len(traced) == 1 and (tmp_path / "trace.json").exists()
    return target.rows


def test_every_variant_is_right_and_recorded(rows):
    """A wrong result would have left its variant out."""
    variants = ["prefill_kernel", "chapter", "split_kv", "sdpa_cudnn"]
    assert [row["variant"] for row in rows] == variants * 2
    assert [row["peer"] for row in rows] == [False, False, False, True] * 2
    splits = [row["splits"] for row in rows if row["variant"] == "chapter"]
    assert splits == [5, 3]  # tiles of 64 tokens, fewer than SMs


def test_kernels_are_the_chapters():
    chapter = _chapter.built_in("04")
    assert chapter.splits_for(1, 8, 8192, sms=132) == 16
    assert chapter.splits_for(64, 8, 8192, sms=132) == 1
    assert chapter.splits_for(1, 1, 1, sms=132) == 1
    assert [chapter.partial_kernel.__name__, chapter.merge_kernel.__name__] == [
        "partial_kernel",
        "merge_kernel",
    ]

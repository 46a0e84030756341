"""Benchmarks of chapter 05 that compare layouts: all but the times, dry."""

import pytest
import torch
from dry_benchmark import dry, small_heads, variants  # noqa: F401

from benchmarks import _layout_inputs as given
from benchmarks import dequantize, kv_layouts
from kernelbook import backend, kv_bytes
from kernelbook.kernels import kv_quantize

SMALL = {"BATCH": 2, "CONTEXT": 256, "SHARED": 128, "DRAFTED": 5, "LATENT": 64, "ROPE": 16}


@pytest.fixture
def small(dry, monkeypatch):  # noqa: F811
    """The writer; everything small, and one set of inputs, quantized without a kernel."""
    small_heads(monkeypatch)
    for name, size in SMALL.items():
        monkeypatch.setattr(given, name, size)
    monkeypatch.setattr(given, "kv_quantize", kv_quantize.reference)
    once = given.inputs()
    monkeypatch.setattr(given, "inputs", lambda: once)
    return dry


def run(benchmark, writer, monkeypatch) -> None:
    """As on a GPU, except that nothing is compiled."""
    monkeypatch.setattr(benchmark.backend, "GPU", True)
    monkeypatch.setattr("benchmarks._warm.compile_all", lambda *_: None)
    benchmark.run(writer)


def test_every_layout_is_measured_once(small, monkeypatch, capsys):
    run(kv_layouts, small, monkeypatch)
    assert "skipped" not in capsys.readouterr().out
    rows = variants(small, "kv_layouts")
    assert set(rows) == {*kv_bytes.KEPT, "sdpa_cudnn"} and len(small.rows) == len(rows)
    assert {str(row["shape"]) for row in rows.values()} == {
        str({"batch": 2, "lengths": 256, "query_heads": 4})
    }
    assert [name for name, row in rows.items() if row["peer"]] == ["sdpa_cudnn"]
    assert rows["paged_16"]["metadata_bytes"] == 4 * 2 + 4 * 2 * 16
    assert rows["int8"]["bytes_per_token"] == 2 * 2 * (32 + 4)
    whole, shared = rows["contiguous"]["stored_bytes"], rows["shared_pages"]["stored_bytes"]
    assert whole == 2 * 256 * 2 * 2 * 32 * 2 and shared == whole * (128 + 2 * 128) // 512
    assert rows["shared_prefix"]["bytes"] < rows["shared_pages"]["bytes"]


@pytest.mark.parametrize(
    "variant", [name for name in kv_layouts.CALLS if name in kv_layouts.EXPECTED]
)
def test_every_layout_is_checked(small, monkeypatch, capsys, variant):
    """The right answer for another scale of the queries is not taken."""
    right = kv_layouts.CALLS[variant]

    def doubled(x):
        twice = {name: 2 * getattr(x, name) for name in ("q", "mla_q", "tree_q")}
        return right(type(x)(**{**vars(x), **twice}))

    monkeypatch.setattr(kv_layouts, "CALLS", {variant: doubled})
    monkeypatch.setattr(kv_layouts._rotated.timing, "rotate", lambda *_, **__: None)
    monkeypatch.setattr(kv_layouts._rotated.timing, "side_by_side", lambda calls, **_: calls)
    run(kv_layouts, small, monkeypatch)
    assert f"{variant} skipped, AssertionError" in capsys.readouterr().out and not small.rows


def test_all_calls_but_none_are_expected():
    assert set(kv_layouts.EXPECTED) == set(kv_layouts.CALLS)
    assert set(dequantize.CALLS) - set(dequantize.EXPECTED) == {"int8_dequantize", "fp8_dequantize"}


@pytest.mark.parametrize("batch", [1, 3])
def test_dequantize(small, batch, capsys):
    dequantize.measure(small, batch, 70)
    assert "skipped" not in capsys.readouterr().out
    rows = variants(small, "dequantize")
    assert set(rows) == set(dequantize.CALLS)
    codes, wide = 2 * 2 * batch * 70 * (32 + 4), 2 * 2 * batch * 70 * 32 * 2
    assert rows["int8_dequantize"]["bytes"] == codes + wide
    more = rows["fp8_separate"]["bytes"] - rows["fp8_fused"]["bytes"]
    assert more == 2 * wide, "bf16 KV is written and read again"
    assert rows["bf16"]["speedup"] == 1 and rows["sdpa_cudnn"]["speedup"] == 0.5
    assert rows["int8_separate_sdpa"]["peer"] and rows["int8_separate_sdpa"]["kv"] == "int8"
    assert "speedup" not in rows["int8_dequantize"] and rows["sdpa_cudnn"]["kv"] == "bf16"


def test_dequantized_is_codes_times_scales():
    _, k, v, _, codes = dequantize.inputs(1, 70)
    for kind in ("int8", "fp8"):
        found = dequantize.dequantized(*codes[kind])
        for x, known, at in zip(found, (k, v), (0, 2), strict=True):
            exact = dequantize.quantized.dequantize(*codes[kind][at : at + 2], torch.bfloat16)
            assert torch.equal(x, exact) and x.shape == known.shape


@pytest.mark.skipif(backend.GPU, reason="measures where there is a GPU")
@pytest.mark.parametrize("benchmark", [dequantize, kv_layouts], ids=["dequantize", "kv_layouts"])
def test_without_a_gpu_nothing_is_recorded(benchmark, capsys):
    benchmark.run(None)
    assert "no GPU" in capsys.readouterr().out

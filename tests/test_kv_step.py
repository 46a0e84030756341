"""Chapter 05's own benchmarks: a decode step with each cache, and page numbers read ahead; dry."""

from types import SimpleNamespace

import pytest
import torch
from dry_benchmark import dry, small_heads  # noqa: F401
from test_decode_step import TIED, fake_clock

from benchmarks import _kv, decode_step, kv_step, paged_gather
from kernelbook import backend, kv_bytes, meter, model, records, timing
from kernelbook.kernels import attention_paged as paged

NAMES = ["bf16", "paged", "int8", "fp8"]


@pytest.fixture(scope="module")
def llama():
    return model.random_model(TIED, torch.float32, "cpu")


def test_every_cache_is_full_of_numbers_and_stays_so(llama):
    token = torch.randint(TIED.vocab, (2, 1))
    for name, make in kv_step.CACHES.items():
        cache = kv_step.filled(make, TIED, 2, 9, torch.float32, "cpu")
        assert cache.k[0].float().std() > 0.5 and cache.counted == [8, 8], name
        kv_step.step(llama, token, cache)
        assert cache.counted == cache.lengths.tolist() == [8, 8], name


def test_attention_alone_writes_and_attends_as_a_step_does(llama):
    """Quantizing and writing included: what 8 bits cost is in p and s."""
    q, (k, v) = torch.randn(1, 4, 1, 16), torch.randn(2, 1, 2, 1, 16)
    cache = kv_step.filled(kv_step.CACHES["int8"], TIED, 1, 9, torch.float32, "cpu")
    before = cache.k.clone()
    counts = meter.count(kv_step.attention_alone, q, k, v, cache)
    launched = [kernel.name for kernel in counts.kernels]
    assert launched == ["kv_quantize_kernel"] * 2 + ["split_kv_kernel"] + launched[:3]
    assert torch.equal(cache.k, before), "the meter counts on copies"
    kv_step.attention_alone(q, k, v, cache)
    changed = (cache.k != before).any(-1)
    assert changed[..., 8].all() and not changed[..., :8].any()


@pytest.mark.parametrize("name", NAMES)
def test_work_reads_weights_once_and_each_cache_in_its_bytes(name):
    batch, context, dtype = 3, 20, torch.bfloat16
    whole, attention = kv_step.work_of(name, TIED, batch, context, dtype)
    kv = {"paged": "bf16"}.get(name, name)
    token = TIED.layers * kv_bytes.gqa_token_bytes(TIED.kv_heads, TIED.head_dim, kv)
    table = TIED.layers * 4 * batch * 2 if name == "paged" else 0
    rest = TIED.layers * batch * (TIED.heads * TIED.head_dim * 2 + 4)  # q, and lengths
    assert attention.read == batch * context * token + table + rest
    one = decode_step.step_work(TIED, context, dtype)
    weights = one.read - context * TIED.kv_bytes_per_token(2)
    assert whole.read == weights + attention.read
    assert whole.flops == batch * one.flops


def test_the_whole_benchmark_on_a_small_model(llama, monkeypatch, tmp_path):
    monkeypatch.setattr(timing, "side_by_side", fake_clock)
    with records.Writer(tmp_path / "rows.jsonl", {"run_info": True, "run": "x", "gpu": "y"}) as w:
        kv_step.measure(w, "1b", llama, 2, 20)
    for op in ("kv_step", "kv_step_attention"):
        assert [row["variant"] for row in w.rows if row["op"] == op] == NAMES
    assert all(row["shape"] == {"preset": "1b", "batch": 2, "context": 20} for row in w.rows)


def by_reference(q, k, v, table, lengths, **options):
    """In the place of the chapter's kernel."""
    assert options["splits"] >= 1 and options["stages"] in (1, 3)
    return paged.reference(q, k, v, table, lengths), None


def test_page_numbers_ahead_and_on_time(dry, monkeypatch, capsys):  # noqa: F811
    small_heads(monkeypatch)
    paged_gather.measure(dry, by_reference, 2, 128)
    assert "skipped" not in capsys.readouterr().out
    found = {(r["variant"], r["shape"]["page_size"], r["shape"]["stages"]): r for r in dry.rows}
    assert len(found) == 3 + 2 * 5
    assert found["ahead", 16, 1]["bytes"] - found["tuned", 64, 0]["bytes"] == 4 * 2 * (8 - 2)


def test_a_wrong_kernel_is_not_timed(dry, monkeypatch, capsys):  # noqa: F811
    def wrong(q, k, v, table, lengths, **options):
        return paged.reference(q, k, v, table.roll(1, 0), lengths), None

    small_heads(monkeypatch)
    paged_gather.measure(dry, wrong, 2, 128)  # each sequence reads the other's pages
    assert {row["variant"] for row in dry.rows} == {"tuned"}
    assert capsys.readouterr().out.count("skipped") == 10


def test_what_is_traced_runs(monkeypatch):
    small_heads(monkeypatch)
    monkeypatch.setattr(_kv, "DTYPE", torch.float32)
    counts = meter.count(paged_gather.dequantized_then_fused(1, 64))
    names = [kernel.name for kernel in counts.kernels]
    assert names.count("split_kv_kernel") == 2


@pytest.mark.skipif(backend.GPU, reason="measures where there is a GPU")
def test_without_a_gpu_nothing_is_recorded(capsys):
    for benchmark in (kv_step, paged_gather):
        benchmark.run(SimpleNamespace())
    assert capsys.readouterr().out.count("no GPU") == 2

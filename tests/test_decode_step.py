"""What the benchmark of the decode step computes, and its whole path, times made up."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import decode_step
from kernelbook import backend, model, records, timing

TIED = model.LlamaConfig(128, 64, 96, 2, 4, 2, 16, tied=True)
UNTIED = model.LlamaConfig(128, 64, 96, 2, 4, 2, 16)


@pytest.fixture(scope="module")
def llama():
    return model.random_model(TIED, torch.float32, "cpu")


@pytest.mark.parametrize("config", [TIED, UNTIED])
def test_work_of_a_step(config):
    """FLOPs as PyTorch counts them; bytes: what is multiplied once, and the KV of each token."""
    llama = model.random_model(config, torch.float32, "cpu")
    cache = decode_step.filled_cache(config, 9, torch.float32, "cpu")
    attention = decode_step.of_full(model.plain_attention)
    with FlopCounterMode(display=False) as counter:
        decode_step.step(llama, cache, torch.zeros(1, 1, dtype=torch.long), attention)
    work = decode_step.step_work(config, 9, torch.float32)
    assert work.flops == counter.get_total_flops()
    weights = sum(w.numel() for n, w in llama.named_parameters() if n != "embed_tokens.weight")
    weights += 128 * 64 if config.tied else 0
    kv = 2 * 2 * 2 * 16  # K and V, layers, KV heads, dimension
    assert work.read == 4 * (weights + kv * 9) and work.written == 4 * (128 + kv)


def test_a_step_reads_a_full_cache_and_leaves_it_so(llama):
    cache = decode_step.filled_cache(TIED, 9, torch.float32, "cpu")
    assert (cache.k != 0).all() and (cache.v != 0).all()
    token = torch.randint(TIED.vocab, (1, 1))
    found = [
        decode_step.step(llama, cache, token, attention)
        for name, attention in decode_step.attentions().items()
        if name != "sdpa_cudnn"
    ]
    assert cache.counted == cache.lengths.tolist() == [8]
    for logits in found:
        torch.testing.assert_close(logits, found[0], rtol=1e-4, atol=1e-4)
    cache.v[:, :, :, 0] += 1  # the first token is seen, too
    changed = decode_step.step(llama, cache, token, decode_step.attentions()["sdpa"])
    assert not torch.allclose(changed, found[0], rtol=1e-3, atol=1e-3)


def test_attention_alone_is_what_a_step_calls(llama):
    calls = []

    def watch(q, k, v, lengths=None, causal=False, scale=None):
        calls.append((q.shape, k.data_ptr(), v.data_ptr(), lengths.tolist(), causal, scale))
        return q

    cache = decode_step.filled_cache(TIED, 9, torch.float32, "cpu")
    decode_step.step(llama, cache, torch.zeros(1, 1, dtype=torch.long), watch)
    in_step = list(calls)
    calls.clear()
    queries, lengths = torch.randn(2, 1, 4, 1, 16), torch.tensor([9], dtype=torch.int32)
    decode_step.attention_alone(cache, queries, lengths, watch)
    assert len(calls) == 2 and calls == in_step


def test_attention_that_does_not_fit_is_recorded():
    def call(attention):
        if attention == "too large":
            raise torch.cuda.OutOfMemoryError
        if attention == "none":
            raise RuntimeError("No available kernel. Aborting execution.")

    rows = []
    functions = {"plain": "too large", "sdpa_cudnn": "none", "split_kv": "fits"}
    kept = decode_step.fitting(call, functions, lambda **row: rows.append(row))
    assert kept == {"split_kv": "fits"}
    assert rows == [{"op": "decode_step", "variant": "plain", "out_of_memory": True}]


def fake_clock(variants, **options):
    """`timing.side_by_side` without a GPU: each variant runs; the n-th takes n + 1 µs."""
    assert options == {"graph": True, "calls": 1, "repeats": 20, "warmup_ms": 10}
    for call in variants.values():
        call()
    return {n: timing.Timing.of([i + 1.0] * 20, "fake") for i, n in enumerate(variants)}


def test_the_whole_benchmark_on_a_small_model(llama, monkeypatch, tmp_path):
    monkeypatch.setattr(timing, "side_by_side", fake_clock)
    with records.Writer(tmp_path / "rows.jsonl", {"run_info": True, "run": "x", "gpu": "y"}) as w:
        decode_step.measure(w, "1b", llama, 12)
    steps = [row for row in w.rows if row["op"] == "decode_step"]
    shares = [row for row in w.rows if row["op"] == "decode_attention_share"]
    names = ["plain", "prefill_kernel", "one_split", "split_kv", "sdpa"]  # fp32: none of cuDNN's
    assert [row["variant"] for row in steps] == [row["variant"] for row in shares] == names
    assert all(row["shape"] == {"preset": "1b", "batch": 1, "context": 12} for row in w.rows)
    assert [row["peer"] for row in steps] == [False] * 4 + [True]
    assert all(row["share"] == 1.0 for row in shares)  # by this clock
    assert [row.get("splits") for row in steps] == [None, None, 1, 1, None]
    assert shares[0]["bytes"] == decode_step.attention_work(TIED, 12, torch.float32).bytes


def test_share_is_of_the_same_variants_step(llama, monkeypatch, tmp_path):
    clocks = iter([10.0, 4.0])

    def clock(variants, **_):
        time = next(clocks)
        return {name: timing.Timing.of([time * (i + 1)]) for i, name in enumerate(variants)}

    monkeypatch.setattr(timing, "side_by_side", clock)
    with records.Writer(tmp_path / "rows.jsonl", {"run_info": True, "run": "x", "gpu": "y"}) as w:
        decode_step.measure(w, "1b", llama, 5)
    assert {row["share"] for row in w.rows if "share" in row} == {0.4}


@pytest.mark.skipif(backend.GPU, reason="measures where there is a GPU")
def test_without_a_gpu_nothing_is_recorded(capsys):
    decode_step.run(None)
    assert "no GPU" in capsys.readouterr().out

"""What the benchmark of the prefill step computes besides times, which need a GPU."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import prefill_step
from kernelbook import backend, model

SMALL = model.LlamaConfig(128, 64, 96, 2, 4, 2, 16, tied=True)


@pytest.fixture(scope="module")
def llama():
    return model.random_model(SMALL, torch.float32, "cpu")


@pytest.mark.parametrize("length", [1, 37])
def test_work_of_a_step_is_what_pytorch_counts(llama, length):
    tokens = torch.randint(SMALL.vocab, (1, length))
    with FlopCounterMode(display=False) as counter:
        prefill_step.step_with(llama, tokens, model.plain_attention)
    pairs, visible = length * length, length * (length + 1) // 2
    hidden_by_the_mask = 4 * SMALL.heads * SMALL.head_dim * (pairs - visible) * SMALL.layers
    work = prefill_step.step_work(SMALL, length)
    assert work.flops == counter.get_total_flops() - hidden_by_the_mask


def test_step_asks_for_the_last_token_only(llama):
    tokens = torch.randint(SMALL.vocab, (1, 9))
    logits = prefill_step.step_with(llama, tokens, model.plain_attention)
    with torch.no_grad():
        torch.testing.assert_close(logits, llama(tokens)[:, -1:])


def test_by_groups_is_the_same_attention():
    q, k, v = torch.randn(2, 6, 9, 16), torch.randn(2, 3, 9, 16), torch.randn(2, 3, 9, 16)
    grouped = prefill_step.by_groups(model.plain_attention)
    torch.testing.assert_close(
        grouped(q, k, v, causal=True, scale=0.3), model.plain_attention(q, k, v, True, 0.3)
    )


def test_attention_alone_gets_the_inputs_of_the_step(llama):
    calls = []

    def watch(q, k, v, causal=False, scale=None):
        calls.append((q.shape, k.shape, causal, scale))
        return q

    inputs = prefill_step.attention_inputs(llama, torch.randint(SMALL.vocab, (1, 9)))
    prefill_step.all_layers(watch, inputs)
    assert calls == [((1, 4, 9, 16), (1, 2, 9, 16), True, 0.25)] * SMALL.layers


def test_attention_that_does_not_fit_is_recorded_and_goes_by_groups(llama):
    def too_large(q, k, v, causal=False, scale=None):
        if q.shape[1] > SMALL.group:
            raise torch.cuda.OutOfMemoryError
        return model.plain_attention(q, k, v, causal, scale)

    def no_kernel(*_, **__):
        raise RuntimeError("No available kernel. Aborting execution.")

    rows = []
    functions = {"naive": too_large, "plain": too_large, "sdpa_cudnn": no_kernel}
    functions["sdpa"] = model.sdpa_attention
    tokens = torch.randint(SMALL.vocab, (1, 9))
    kept = prefill_step.fitting(llama, tokens, functions, lambda **row: rows.append(row))
    assert list(kept) == ["naive_by_groups", "sdpa"]
    assert [(row["variant"], row["out_of_memory"]) for row in rows] == [
        ("naive", True),
        ("plain", True),
    ]
    found, expected = (prefill_step.step_with(llama, tokens, f) for f in kept.values())
    torch.testing.assert_close(found, expected)


@pytest.mark.skipif(backend.GPU, reason="measures where there is a GPU")
def test_without_a_gpu_nothing_is_recorded(capsys):
    prefill_step.run(None)
    assert "no GPU" in capsys.readouterr().out

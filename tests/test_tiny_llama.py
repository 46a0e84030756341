"""The shipped model: files that belong together, the loss of its card, text that faults change."""

import hashlib
import json
import re
import time

import pytest
import torch

from kernelbook import model
from kernelbook.model import compare
from kernelbook.model.tiny import FOLDER

SHIPPED = ("model.safetensors", "config.json", "tokenizer.json", "held_out.txt")


@pytest.fixture(scope="module")
def tiny():
    return model.tiny(device="cpu")


def on_card(row: str) -> float:
    card = (FOLDER / "README.md").read_text()
    return float(re.search(rf"\| {row}.*?([\d.]+) bits a byte", card)[1])


def test_hashes_are_those_of_the_list():
    listed = (FOLDER.parent / "README.md").read_text()
    for name in SHIPPED:
        digest = hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()
        assert re.search(rf"`tiny_llama/{name}`.*`{digest}`", listed), name


def test_weights_are_half_precision_below_8_mb():
    assert (FOLDER / "model.safetensors").stat().st_size < 8e6
    assert model.load(FOLDER).dtype == torch.float16


def test_loads_in_a_second(tiny):
    started = time.perf_counter()
    model.tiny(device="cpu")
    assert time.perf_counter() - started < 1


def test_shape_is_the_announced_one(tiny):
    config = tiny[0].config
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (4, 4, 2, 64)
    assert (config.vocab, config.context) == (1024, 512)
    assert config.parameters == pytest.approx(3.2e6, rel=0.01)
    assert f"{config.parameters:,} weights" in (FOLDER / "README.md").read_text()


def test_tokenizer_belongs_to_the_model_and_writes_any_text(tiny):
    llama, tokenizer = tiny
    assert tokenizer.get_vocab_size() == llama.config.vocab
    for text in (model.held_out_text(), "naïve — 漢字 \t\n\n 🙂", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_loss_on_the_excerpt_is_the_cards(tiny):
    bits = model.bits_per_byte(*tiny, model.held_out_text())
    assert bits == pytest.approx(on_card("excerpt"), abs=0.002)


def test_held_out_plays_are_predicted_as_well_as_promised():
    assert on_card("held-out plays") <= 2.1


def test_transformers_reads_the_folder_and_agrees(tiny):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    text = compare.prompts(tiny[1], 2, 100)
    with torch.no_grad():
        torch.testing.assert_close(tiny[0](text), theirs(text).logits, rtol=1e-3, atol=1e-3)
    their_tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(FOLDER / "tokenizer.json")
    )
    excerpt = model.held_out_text()[:500]
    assert their_tokenizer(excerpt)["input_ids"] == tiny[1].encode(excerpt).ids


def test_card_names_the_command_that_trains_again():
    assert "python data/tiny_llama/train.py" in (FOLDER / "README.md").read_text()
    assert json.loads((FOLDER / "config.json").read_text())["model_type"] == "llama"


def test_text_is_unchanged_by_another_attention():
    assert model.text_unchanged(model.sdpa_attention, prompts=2, tokens=24, device="cpu")


def off_by_one(q, k, v, causal=False, scale=None):
    """Query i sees one key too few, but the first."""
    if q.shape[2] == 1:
        return model.plain_attention(q, k, v, causal, scale)
    out = model.plain_attention(q[:, :, 1:], k[:, :, :-1], v[:, :, :-1], True, scale)
    return torch.cat((model.plain_attention(q[:, :, :1], k[:, :, :1], v[:, :, :1]), out), dim=2)


def last_block_skipped(q, k, v, causal=False, scale=None):
    """Keys behind the last whole block of 16 are not read."""
    whole = max(q.shape[2], k.shape[2] // 16 * 16)
    return model.plain_attention(q, k[:, :, :whole], v[:, :, :whole], causal, scale)


def heads_mixed_up(q, k, v, causal=False, scale=None):
    """Query head h reads KV head h mod Hkv instead of h div group."""
    group = q.shape[1] // k.shape[1]
    return model.plain_attention(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1), True, scale)


@pytest.mark.parametrize("fault", [off_by_one, last_block_skipped, heads_mixed_up])
def test_text_is_changed_by_a_fault(fault):
    assert not model.text_unchanged(fault, prompts=2, tokens=24, device="cpu")


def test_half_precision_is_compared_by_logits_and_choices():
    found = model.half_precision(
        model.sdpa_attention, torch.bfloat16, count=2, length=64, device="cpu"
    )
    assert found.tokens == 128
    assert 0 < found.error < 1.5 * found.plain_error < 0.03
    assert found.agreement > 0.95
    wrong = model.half_precision(off_by_one, torch.bfloat16, count=2, length=64, device="cpu")
    assert wrong.error > 5 * wrong.plain_error
    assert wrong.agreement < 0.9


def test_prompts_are_passages_of_the_held_out_text(tiny):
    text = model.held_out_text()
    for row in compare.prompts(tiny[1], 8, 64):
        assert tiny[1].decode(row.tolist()) in text


def test_exact_float32_puts_the_setting_back():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with compare.exact_float32():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_encode_cuts_to_the_shortest_text(tiny):
    rows = model.encode(tiny[1], ["To be, or not to be", "To be"])
    assert rows.shape[0] == 2
    with pytest.raises(ValueError, match="fewer than the 50"):
        model.encode(tiny[1], ["To be"], length=50)

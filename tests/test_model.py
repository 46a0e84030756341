"""The plain Llama says what transformers' says, with and without a cache, whatever is swapped."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelbook import model
from kernelbook.model import attention
from kernelbook.model.config import from_hugging_face

transformers = pytest.importorskip("transformers")

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
ROPES = [{"rope_type": "default"}, {"rope_type": "linear", "factor": 4.0}, LLAMA3]


def twins(seed=0, **sizes):
    """The same random weights in transformers' model and in ours."""
    config = transformers.LlamaConfig(
        **{
            "vocab_size": 61,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 256,
            "eos_token_id": None,
            "bos_token_id": None,
        }
        | sizes
    )
    torch.manual_seed(seed)
    theirs = transformers.LlamaForCausalLM(config).eval()
    for weight in theirs.parameters():  # norms of ones and biases of zeros would test nothing
        torch.nn.init.normal_(weight, mean=0.1 * (weight.dim() == 1), std=0.2)
    ours = model.Llama(from_hugging_face(config.to_dict())).eval()
    state = {name.removeprefix("model."): w for name, w in theirs.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight")
    ours.load_state_dict(state)
    return theirs, ours


def tokens(batch=2, length=40, vocab=61, seed=1):
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def error(out, reference):
    return ((out - reference).norm() / reference.norm()).item()


@pytest.fixture(scope="module")
def small():
    return twins()


@settings(deadline=None, max_examples=12)
@given(
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2, 3, 5]),
    head_dim=st.sampled_from([2, 8, 10, 32]),
    width=st.sampled_from([2, 6]),
    tied=st.booleans(),
    bias=st.booleans(),
    rope=st.sampled_from(ROPES),
    theta=st.sampled_from([100.0, 10000.0, 500000.0]),
    length=st.integers(1, 90),
)
def test_logits_equal_transformers(
    kv_heads, group, head_dim, width, tied, bias, rope, theta, length
):
    theirs, ours = twins(
        hidden_size=kv_heads * group * width,  # transformers wants a multiple of the heads
        num_attention_heads=kv_heads * group,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        tie_word_embeddings=tied,
        attention_bias=bias,
        rope_parameters=rope | {"rope_theta": theta},
    )
    text = tokens(length=length)
    with torch.no_grad():
        assert error(ours(text), theirs(text).logits) < 2e-5


def test_scaling_of_rope_matters():
    plain, _ = twins()
    for rope in ROPES[1:]:
        _, scaled = twins(rope_parameters=rope | {"rope_theta": 10000.0})
        with torch.no_grad():
            assert error(scaled(tokens()), plain(tokens()).logits) > 1e-2


def test_float64_agrees_with_transformers_to_rounding(small):
    theirs, ours = twins()
    with torch.no_grad():
        assert error(ours.double()(tokens()), theirs.double()(tokens()).logits) < 1e-6


@settings(deadline=None, max_examples=10)
@given(cuts=st.lists(st.integers(1, 39), max_size=4), last=st.booleans())
def test_a_cache_changes_nothing(small, cuts, last):
    """Any division of the text into prefill, chunks and single tokens gives the same logits."""
    _, ours = small
    text = tokens()
    edges = sorted({0, *cuts, 40})
    cache = ours.new_cache(batch=2, capacity=40)
    with torch.no_grad():
        whole = ours(text)
        for start, end in pairwise(edges):
            part = ours(text[:, start:end], cache=cache, last_only=last)
            expected = whole[:, end - 1 : end] if last else whole[:, start:end]
            assert part.shape == expected.shape
            torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-4)
    assert cache.length == 40


def test_a_full_cache_says_so(small):
    _, ours = small
    cache = ours.new_cache(batch=2, capacity=10)
    with pytest.raises(ValueError, match="holds 10 tokens, 11 are needed"):
        ours(tokens(length=11), cache=cache)


def test_greedy_text_equals_transformers(small):
    theirs, ours = small
    prompt = tokens(length=7)
    expected = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=30,
        do_sample=False,
        pad_token_id=0,
    )[:, 7:]
    assert torch.equal(model.generate(ours, prompt, 30), expected)
    assert torch.equal(model.generate(ours, prompt, 30, cached=False), expected)


def test_generate_asks_for_a_prompt(small):
    with pytest.raises(ValueError, match="at least 1"):
        model.generate(small[1], torch.empty(1, 0, dtype=torch.long), 3)


@settings(deadline=None, max_examples=20)
@given(
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    queries=st.integers(1, 20),
    extra=st.integers(0, 20),
    head_dim=st.sampled_from([1, 8, 13]),
    causal=st.booleans(),
    scale=st.sampled_from([None, 0.3]),
)
def test_plain_attention_is_the_formula(kv_heads, group, queries, extra, head_dim, causal, scale):
    """Against a loop over heads and rows in float64, which has no mask to get wrong."""
    generator = torch.Generator().manual_seed(queries)
    keys = queries + extra
    q, k, v = (
        torch.randn(2, heads, length, head_dim, generator=generator, dtype=torch.float64)
        for heads, length in ((kv_heads * group, queries), (kv_heads, keys), (kv_heads, keys))
    )
    expected = torch.empty_like(q)
    for head in range(kv_heads * group):
        for i in range(queries):
            seen = keys - queries + i + 1 if causal else keys
            key, value = k[:, head // group, :seen], v[:, head // group, :seen]
            scores = (key @ q[:, head, i, :, None])[..., 0] * (scale or head_dim**-0.5)
            expected[:, head, i] = (scores.softmax(-1)[..., None] * value).sum(1)
    for function in (model.plain_attention, model.sdpa_attention):
        torch.testing.assert_close(function(q, k, v, causal=causal, scale=scale), expected)


def test_plain_attention_takes_views(small):
    """Cached keys are views with the strides of the whole buffer; queries are transposed."""
    q = torch.randn(2, 5, 4, 16).transpose(1, 2)
    k, v = torch.randn(2, 2, 2, 9, 16)[..., :7, :]
    expected = model.plain_attention(q.contiguous(), k.contiguous(), v.contiguous(), causal=True)
    torch.testing.assert_close(model.plain_attention(q, k, v, causal=True), expected)


def test_causal_is_aligned_to_the_end():
    assert attention.causal_mask(2, 4, "cpu").tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_half(small, dtype):
    theirs, ours = twins()
    with torch.no_grad():
        exact = ours(tokens())
        half = ours.to(dtype)(tokens())
        their_error = error(theirs.to(dtype)(tokens()).logits.float(), exact)
    assert half.dtype == dtype
    assert error(half.float(), exact) < 1.3 * their_error < 0.1


def test_functions_are_swapped_inside_the_block_only(small):
    _, ours = small
    calls = {"attention": [], "norm": [], "mlp": []}

    def attend(q, k, v, causal=False, scale=None):
        calls["attention"].append((q.shape, k.shape, v.shape, causal, scale))
        return model.plain_attention(q, k, v, causal, scale)

    def norm(x, weight, eps):
        calls["norm"].append((x.shape, weight.shape, eps))
        return model.rms_norm(x, weight, eps)

    def mlp(x, gate, up, down):
        calls["mlp"].append((x.shape, gate.shape, up.shape, down.shape))
        return model.swiglu(x, gate, up, down)

    with torch.no_grad():
        before = ours(tokens())
        with ours.using(attention=attend), ours.using(norm=norm, mlp=mlp):
            assert torch.equal(ours(tokens()), before)
        ours(tokens())
    assert calls["attention"] == [((2, 4, 40, 16), (2, 2, 40, 16), (2, 2, 40, 16), True, 0.25)] * 2
    assert calls["norm"] == [((2, 40, 48), (48,), 1e-6)] * 5
    assert calls["mlp"] == [((2, 40, 48), (80, 48), (80, 48), (48, 80))] * 2


def test_functions_come_back_after_an_error(small):
    _, ours = small
    before = ours.functions
    with pytest.raises(ZeroDivisionError), ours.using(norm=lambda *_: 1 / 0):
        ours(tokens())
    assert ours.functions is before


def test_rope_tables_grow_and_follow_the_model():
    _, ours = twins(max_position_embeddings=16)
    assert len(ours.cos) == 16
    with torch.inference_mode():
        ours(tokens(length=20))
    assert len(ours.cos) == 32
    ours(tokens(length=20)).sum().backward()  # tables made in inference mode must not stop training
    assert ours.embed_tokens.weight.grad is not None
    assert ours.bfloat16().sin.dtype == torch.bfloat16


def test_a_step_makes_no_tables():
    """Or the first step's counts would differ from the second's."""
    made = []
    ours = model.random_model(model.LlamaConfig(97, 64, 96, 1, 4, 2, 16), torch.float32, "cpu")
    ours.reserve = made.append
    ours(tokens(vocab=97))
    assert not made


@pytest.mark.parametrize("name,billions", [("1b", 1.2358), ("8b", 8.0303)])
def test_presets_are_the_public_shapes(name, billions):
    config = model.preset(name)
    with torch.device("meta"):
        count = sum(weight.numel() for weight in model.Llama(config).parameters())
    assert count == config.parameters == pytest.approx(billions * 1e9, rel=1e-4)


def test_a_preset_that_does_not_exist():
    with pytest.raises(ValueError, match=r"\['1b', '8b'\], got '70b'"):
        model.preset("70b")


def test_a_random_model_is_reproducible_and_of_sane_size():
    config = model.LlamaConfig(97, 64, 96, 3, 4, 2, 16, attention_bias=True)
    first, second = (model.random_model(config, torch.bfloat16, "cpu", seed=5) for _ in range(2))
    with torch.no_grad():
        logits = first(tokens(vocab=97))
        assert torch.equal(logits, second(tokens(vocab=97)))
    assert first.dtype == logits.dtype == torch.bfloat16
    assert 0.1 < logits.float().std() < 10
    assert config.parameters == sum(weight.numel() for weight in first.parameters())


def test_a_config_that_cannot_be():
    with pytest.raises(ValueError, match="multiple of kv_heads, got 4 and 3"):
        model.LlamaConfig(8, 8, 8, 1, 4, 3, 8)
    with pytest.raises(ValueError, match="must be even, got 7"):
        model.LlamaConfig(8, 8, 8, 1, 4, 2, 7)
    with pytest.raises(ValueError, match="'yarn' is not supported"):
        model.LlamaConfig(8, 8, 8, 1, 4, 2, 8, rope_scaling={"rope_type": "yarn"})


def test_kv_bytes_of_a_token():
    assert model.preset("1b").kv_bytes_per_token() == 32 * 1024
    assert model.preset("8b").kv_bytes_per_token() == 128 * 1024

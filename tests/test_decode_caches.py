"""Each cache of decode keeps what the plain one keeps, and the model says the same through it."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic_caches import (
    PAGED,
    QUANTIZED,
    SHARED_PREFIX,
    SPLIT,
    filled,
    made,
    small,
    tokens,
)

from kernelbook import backend, meter, model
from kernelbook.kernels import attention_decode, attention_paged

gpu = pytest.mark.skipif(not backend.GPU, reason="no GPU: caches were not run through kernels")
KERNELS = [model.SplitCache, model.PagedCache, model.QuantizedCache]


@pytest.fixture(scope="module")
def llama():
    return small()


exact = st.one_of(
    st.just(SPLIT),
    st.builds(
        partial,
        st.just(PAGED),
        page_size=st.sampled_from([8, 16, 32]),
        shuffle=st.booleans(),
        seed=st.integers(0, 99),
    ),
)


@given(cache=exact, cuts=st.lists(st.integers(1, 39), max_size=4), last=st.booleans())
def test_any_division_of_a_text_gives_the_same_logits(llama, cache, cuts, last):
    """Prefill, chunks and single tokens, through contiguous KV and pages in any order."""
    text = tokens(2, 40)
    cache = made(cache, llama, 2, 40)
    with torch.inference_mode():
        whole = llama(text)
        for start, end in pairwise(sorted({0, *cuts, 40})):
            part = llama(text[:, start:end], cache=cache, last_only=last)
            expected = whole[:, end - 1 : end] if last else whole[:, start:end]
            torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-4)
    assert cache.lengths.tolist() == cache.counted == [40, 40]


@given(cache=exact, length=st.integers(1, 35), n=st.integers(1, 20), seed=st.integers(0, 9))
def test_text_is_that_of_the_plain_cache(llama, cache, length, n, seed):
    prompts = tokens(3, length, seed)
    found = model.generate(llama, prompts, n, cache=made(cache, llama, 3, length + n))
    assert torch.equal(found, model.generate(llama, prompts, n))


@given(
    cache=exact,
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    n=st.integers(1, 12),
)
def test_sequences_of_several_lengths_are_each_their_own(llama, cache, lengths, n):
    """Padded on the right, read together, cut to their lengths: as if each came alone."""
    prompts = tokens(len(lengths), max(lengths))
    cache = made(cache, llama, len(lengths), max(lengths) + n)
    with torch.inference_mode():
        logits = llama(prompts, cache=cache)
        cache.set_lengths(lengths)
        last = torch.stack([row[length - 1] for row, length in zip(logits, lengths, strict=True)])
        first = last.argmax(-1, keepdim=True)
        rest = model.generate(llama, first, n - 1, cache=cache)
    for i, length in enumerate(lengths):
        alone = model.generate(llama, prompts[i : i + 1, :length], n)
        assert torch.equal(torch.cat((first, rest), dim=1)[i : i + 1], alone)


def test_an_empty_sequence_beside_a_filled_one(llama):
    """A chunk that is a whole prompt in one sequence, and follows others in the next."""
    text = tokens(2, 9)
    cache = made(SPLIT, llama, 2, 9)
    with torch.inference_mode():
        llama(text[:, :4], cache=cache)
        cache.set_lengths([0, 4])
        logits = llama(torch.stack((text[0, :5], text[1, 4:])), cache=cache)
        expected = torch.stack((llama(text[:1, :5])[0], llama(text[1:])[0, 4:]))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert cache.counted == cache.lengths.tolist() == [5, 9]


@given(
    prefix=st.integers(1, 20), rest=st.integers(1, 9), n=st.integers(1, 9), batch=st.integers(1, 4)
)
def test_a_shared_prefix_is_read_once_and_the_text_is_the_same(llama, prefix, rest, n, batch):
    prompts = tokens(batch, prefix + rest)
    prompts[:, :prefix] = prompts[0, :prefix].clone()
    cache = made(SHARED_PREFIX, llama, batch, prefix + rest + n)
    with torch.inference_mode():
        llama(prompts[:1, :prefix], cache=cache)
    found = model.generate(llama, prompts[:, prefix:], n, cache=cache)
    assert torch.equal(found, model.generate(llama, prompts, n))
    assert cache.prefix_k[0].shape == (2, prefix, 16)
    assert cache.k.shape[3] == rest + n  # and nobody keeps room for it


@given(batch=st.integers(1, 5), capacity=st.integers(1, 90), page=st.sampled_from([8, 16, 64]))
def test_every_page_belongs_to_one_sequence(llama, batch, capacity, page):
    cache = made(PAGED, llama, batch, capacity, page_size=page)
    assert cache.table.shape == (batch, -(-capacity // page))
    assert sorted(cache.table.flatten().tolist()) == list(range(cache.k.shape[1]))


def test_pages_are_shuffled_unless_asked_not_to(llama):
    in_order = list(range(12))
    assert made(PAGED, llama, 2, 96).table.flatten().tolist() != in_order
    assert made(PAGED, llama, 2, 96, shuffle=False).table.flatten().tolist() == in_order


@pytest.mark.parametrize("page_size", [8, 16])
def test_pages_gathered_are_the_contiguous_cache(llama, page_size):
    plain = filled(llama.new_cache(2, 13), llama)
    paged = filled(made(PAGED, llama, 2, 13, page_size=page_size), llama)
    for layer in range(2):
        k, v, table = paged.kv(layer)
        for pool, expected in ((k, plain.k), (v, plain.v)):
            found = attention_paged.gather(pool, table)[:, :, :13]
            torch.testing.assert_close(found, expected[layer], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cache", KERNELS)
def test_text_through_the_kernels(cache):
    """Interpreted without a GPU: few tokens; ends where pages of 8 end, too."""
    llama = small(layers=1)
    prompts = tokens(2, 6)
    cache = made(cache, llama, 2, 10, **({"page_size": 8} if cache is model.PagedCache else {}))
    found = model.generate(llama, prompts, 4, cache=cache)
    assert torch.equal(found, model.generate(llama, prompts, 4))


def test_text_through_the_cascade_kernel():
    llama = small(layers=1)
    prompts = tokens(2, 6)
    prompts[:, :4] = prompts[0, :4].clone()
    cache = made(model.SharedPrefixCache, llama, 2, 10)
    with torch.inference_mode():
        llama(prompts[:1, :4], cache=cache)
    found = model.generate(llama, prompts[:, 4:], 4, cache=cache)
    assert torch.equal(found, model.generate(llama, prompts, 4))


@pytest.mark.parametrize("cache", [*KERNELS, model.SharedPrefixCache])
def test_a_step_waits_for_nothing(cache):
    """Lengths are the device's: a step that read them on the host could not be captured."""
    llama = small(layers=1)
    cache = made(cache, llama, 1, 8)
    with torch.inference_mode():
        llama(tokens(1, 2), cache=cache)
        counts = meter.count(lambda: llama(tokens(1, 1), cache=cache))
    assert counts.launches and counts.waits == []


REFERENCES = [(SPLIT, 0), (PAGED, 0), (SHARED_PREFIX, 40)]
OWN = [(model.SplitCache, 0), (model.PagedCache, 0), (model.SharedPrefixCache, 40)]


@pytest.mark.parametrize(("cache", "shared"), REFERENCES)
def test_tiny_llama_writes_the_same_text(cache, shared):
    assert model.text_with(cache, 3, 40, device="cpu", shared=shared).equal


@gpu
@pytest.mark.parametrize(("cache", "shared"), OWN)
def test_tiny_llama_writes_the_same_text_on_the_gpu(cache, shared):
    assert model.text_with(cache, 8, 200, shared=shared).equal


def one_short(q, k, v, *table, lengths, causal=True, scale=None):
    """A fault: the last token of the context is not seen."""
    reference = attention_paged.reference if table else attention_decode.reference
    return reference(q, k, v, *table, lengths=lengths - (lengths > 1).int(), scale=scale)


@pytest.mark.parametrize("cache", [model.SplitCache, model.PagedCache])
def test_a_fault_changes_the_text(cache):
    assert not model.text_with(partial(cache, attention=one_short), 2, 24, device="cpu").equal


@pytest.mark.parametrize("cache", [SPLIT, PAGED, QUANTIZED])
def test_a_full_cache_says_so(llama, cache):
    cache = made(cache, llama, 2, 10)
    with pytest.raises(ValueError, match="holds 10 tokens, 11 are needed"):
        llama(tokens(2, 11), cache=cache)
    llama(tokens(2, 10), cache=cache)
    with pytest.raises(ValueError, match="holds 10 tokens, 11 are needed"):
        llama(tokens(2, 1), cache=cache)


def test_a_prefix_counts_where_a_cache_is_full(llama):
    cache = made(SHARED_PREFIX, llama, 2, 10)
    llama(tokens(1, 6), cache=cache)
    with pytest.raises(ValueError, match="holds 10 tokens, 11 are needed"):
        llama(tokens(2, 5), cache=cache)
    with pytest.raises(ValueError, match=r"from 0 to 4, got \[1, 5\]"):
        cache.set_lengths([1, 5])


def test_what_a_prefix_may_not_be(llama):
    with pytest.raises(ValueError, match="as one sequence, got 2 sequences"):
        llama(tokens(2, 3), cache=made(SHARED_PREFIX, llama, 2, 10))
    with pytest.raises(ValueError, match="a prefix of 10 tokens fills a cache of 10"):
        llama(tokens(1, 10), cache=made(SHARED_PREFIX, llama, 2, 10))
    cache = made(SHARED_PREFIX, llama, 2, 10)
    for part in (tokens(1, 3), tokens(2, 2)):
        llama(part, cache=cache)
    with pytest.raises(ValueError, match="tokens come one at a time"):
        llama(tokens(2, 2), cache=cache)


def test_lengths_that_cannot_be(llama):
    cache = made(SPLIT, llama, 2, 10)
    with pytest.raises(ValueError, match=r"each of 2 sequences, got \[1\]"):
        cache.set_lengths([1])
    for wrong in ([-1, 3], [3, 11]):
        with pytest.raises(ValueError, match="from 0 to 10, got"):
            cache.set_lengths(wrong)


@pytest.mark.parametrize("cache", [SPLIT, PAGED])
def test_undone_steps_leave_no_trace(llama, cache):
    text = tokens(2, 8)
    cache = made(cache, llama, 2, 8)
    with torch.inference_mode():
        llama(text[:, :5], cache=cache)
        with pytest.raises(ZeroDivisionError), cache.undone():
            llama(text[:, :2], cache=cache)
            1 / 0  # noqa: B018
        assert cache.lengths.tolist() == cache.counted == [5, 5]
        found = llama(text[:, 5:], cache=cache)
        torch.testing.assert_close(found, llama(text)[:, 5:], rtol=1e-4, atol=1e-4)

"""Drafts by lookup, and their verification: the greedy text whatever is drafted, KV included."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic_caches import PAGED, QUANTIZED, SHARED_PREFIX, SPLIT, made, small, tokens

from kernelbook import backend, model
from kernelbook.kernels import attention_paged, attention_tree
from kernelbook.model import draft, speculative

gpu = pytest.mark.skipif(not backend.GPU, reason="no GPU: drafts were not verified by the kernel")
texts = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@pytest.fixture(scope="module")
def llama():
    return small()


def test_places_are_behind_earlier_ends():
    assert draft.places([1, 2, 9, 1, 2]) == [2]
    assert draft.places([5, 6, 7]) == draft.places([5]) == []
    # three shared tokens first, then one, the newer of these before the older
    assert draft.places([7, 3, 0, 1, 7, 5, 2, 0, 1, 7]) == [5, 1]
    assert draft.places([1, 4, 1, 5, 1]) == [3, 1]


@given(text=texts, longest=st.integers(1, 4))
def test_places_are_all_that_match(text, longest):
    found = draft.places(text, longest)

    def shared(place):
        count = 0
        while count < min(longest, place) and text[place - 1 - count] == text[-1 - count]:
            count += 1
        return count

    matches = {place: shared(place) for place in range(1, len(text)) if shared(place)}
    assert set(found) == set(matches)
    assert found == sorted(matches, key=lambda place: (-matches[place], -place))


def test_continuations_share_a_tree():
    tree = draft.Tree([9])
    for guess in ([1, 2, 3], [1, 2, 4], [5]):
        tree.add(guess, most=16)
    assert tree == draft.Tree([9, 1, 2, 3, 4, 5], [-1, 0, 1, 2, 2, 0])
    assert tree.depths() == [0, 1, 2, 3, 3, 1]
    assert tree.child(0, 5) == 5 and tree.child(0, 2) is None


def test_the_path_that_the_model_would_have_chosen():
    tree = draft.Tree([9, 1, 2, 3, 4, 5], [-1, 0, 1, 2, 2, 0])
    assert tree.accepted([1, 2, 4, 0, 0, 0]) == [0, 1, 2, 4]
    assert tree.accepted([5, 2, 4, 0, 0, 7]) == [0, 5]
    assert tree.accepted([2, 2, 4, 0, 0, 0]) == [0]


@given(text=texts, most=st.integers(1, 12), guess=st.sampled_from([draft.lookup, draft.chain]))
def test_a_drafted_tree_is_made_of_what_followed(text, most, guess):
    tree = guess(text, most)
    assert tree.tokens[0] == text[-1] and 1 <= len(tree.tokens) == len(tree.parents) <= most
    assert tree.parents[0] == -1 and all(0 <= p < i for i, p in enumerate(tree.parents) if i)
    pairs = set(pairwise(text))
    edges = [(tree.tokens[p], tree.tokens[i]) for i, p in enumerate(tree.parents) if i]
    assert set(edges) <= pairs  # node 0 follows itself where the text does
    assert len(set(zip(tree.parents, tree.tokens, strict=True))) == len(tree.tokens)
    if most > 1 and text[-1] in text[:-1]:
        assert len(tree.tokens) > 1
    if guess is draft.chain:
        assert tree.parents == list(range(-1, len(tree.tokens) - 1))


def random_drafts(seed: int):
    """Trees of any shape; most guesses are wrong."""
    generator = torch.Generator().manual_seed(seed)

    def guess(text, most):
        nodes = int(torch.randint(1, most + 1, (1,), generator=generator))
        parents = [-1] + [int(torch.randint(i, (1,), generator=generator)) for i in range(1, nodes)]
        return draft.Tree([text[-1], *torch.randint(61, (nodes - 1,)).tolist()], parents)

    return guess


def knowing(llama, prompts, n: int, wrong: int):
    """The right continuation in a tree, behind `wrong` wrong guesses at its every node."""
    whole = torch.cat((prompts, model.generate(llama, prompts, n + 8)), dim=1).tolist()

    def guess(text, most):
        right = next((row for row in whole if row[: len(text)] == text), text)  # else none
        tree, node = draft.Tree([text[-1]]), 0
        for token in right[len(text) :]:
            for other in range(1, wrong + 1):
                tree.tokens.append((token + other) % 61)
                tree.parents.append(node)
            tree.tokens.append(token)
            tree.parents.append(node)
            node = len(tree.tokens) - 1
        return draft.Tree(tree.tokens[:most], tree.parents[:most])

    return guess


def drafted(llama, cache, prompts, n, guess, size, attention=attention_tree.reference, **options):
    cache = made(cache, llama, len(prompts), prompts.shape[1] + n + size, **options)
    found = model.generate_drafted(llama, prompts, n, cache, guess, size, attention)
    return found, cache


caches = st.sampled_from([SPLIT, PAGED])


@given(cache=caches, n=st.integers(1, 12), size=st.integers(1, 9), seed=st.integers(0, 99))
def test_whatever_is_drafted_the_text_is_the_greedy_one(llama, cache, n, size, seed):
    prompts = tokens(2, 7, seed)
    found, _ = drafted(llama, cache, prompts, n, random_drafts(seed), size)
    assert torch.equal(found.tokens, model.generate(llama, prompts, n))
    assert found.steps + found.accepted == 2 * (n - 1)  # the prefill gives each its first


@given(cache=caches, wrong=st.integers(0, 2), size=st.integers(1, 16), n=st.integers(1, 20))
def test_right_drafts_are_accepted_as_far_as_they_reach(llama, cache, wrong, size, n):
    prompts = tokens(2, 7)
    found, _ = drafted(llama, cache, prompts, n, knowing(llama, prompts, n, wrong), size)
    assert torch.equal(found.tokens, model.generate(llama, prompts, n))
    reach = 1 + (size - 1) // (wrong + 1)  # tokens a step: guesses that fit, and one on top
    assert found.steps == 2 * -(-(n - 1) // reach)


@given(cache=caches, wrong=st.integers(0, 2), page=st.sampled_from([8, 16]))
def test_accepted_kv_lies_together_as_if_decoded(llama, cache, wrong, page):
    """What is left in the cache is the greedy text's KV, in order, with nothing between."""
    prompts, n = tokens(2, 7), 20
    options = {"page_size": page} if cache is PAGED else {}
    guess = knowing(llama, prompts, n, wrong)
    _, cache = drafted(llama, cache, prompts, n, guess, 8, **options)
    plain = llama.new_cache(2, 27)
    model.generate(llama, prompts, n, cache=plain)
    assert cache.counted == cache.lengths.tolist() == [26, 26]  # the last token is not yet read
    for layer in range(2):
        k, v, table = cache.kv(layer)
        for kept, expected in ((k, plain.k), (v, plain.v)):
            kept = kept if table is None else attention_paged.gather(kept, table)
            found = kept[:, :, :26]
            torch.testing.assert_close(found, expected[layer, :, :, :26], rtol=1e-4, atol=1e-5)


def test_sequences_that_are_done_wait_for_the_others(llama):
    """One sequence is drafted right, the other not at all."""
    prompts = tokens(2, 7)
    right = knowing(llama, prompts, 20, 0)
    first = prompts[0].tolist()

    def guess(text, most):
        return right(text, most) if text[:7] == first else draft.Tree(text[-1:])

    found, cache = drafted(llama, SPLIT, prompts, 20, guess, 6)
    assert torch.equal(found.tokens, model.generate(llama, prompts, 20))
    assert found.steps == 4 + 19 and cache.counted == [26, 26]
    assert found.tokens_per_step == pytest.approx(38 / 23)


def test_nothing_moved_together_is_noticed(llama, monkeypatch):
    """A fault: accepted nodes stay where the tree had them."""
    monkeypatch.setattr(model.SplitCache, "move", lambda *_: None)
    prompts = tokens(2, 7)
    found, _ = drafted(llama, SPLIT, prompts, 20, knowing(llama, prompts, 20, 2), 8)
    assert not torch.equal(found.tokens, model.generate(llama, prompts, 20))


def test_nodes_that_see_their_siblings_are_noticed(llama):
    def all_before(q, k, v, ancestors, lengths, **options):
        chain = attention_tree.pack_ancestors(list(range(-1, q.shape[2] - 1)))
        return attention_tree.reference(q, k, v, chain.expand_as(ancestors), lengths, **options)

    prompts = tokens(2, 7)
    guess = knowing(llama, prompts, 20, 2)
    found, _ = drafted(llama, SPLIT, prompts, 20, guess, 8, all_before)
    assert not torch.equal(found.tokens, model.generate(llama, prompts, 20))


@pytest.mark.parametrize("cache", [model.SplitCache, model.PagedCache])
def test_drafts_verified_by_the_kernel(cache):
    """Interpreted without a GPU: three steps."""
    llama, prompts = small(layers=1), tokens(1, 6)
    guess = knowing(llama, prompts, 7, 1)
    options = {"page_size": 8} if cache is model.PagedCache else {}
    kernel = attention_tree.attention_tree
    found, _ = drafted(llama, cache, prompts, 7, guess, 3, kernel, **options)
    assert torch.equal(found.tokens, model.generate(llama, prompts, 7))
    assert found.steps == 3 and found.accepted == 3


@pytest.mark.parametrize("cache", [SPLIT, PAGED])
@pytest.mark.parametrize("guess", [draft.lookup, draft.chain])
def test_tiny_llama_writes_the_same_text_in_fewer_steps(cache, guess):
    llama, tokenizer = model.tiny(torch.float32, "cpu")
    prompts = model.compare.prompts(tokenizer, 3)
    found, _ = drafted(llama, cache, prompts, 60, guess, 16)
    assert torch.equal(found.tokens, model.generate(llama, prompts, 60))
    assert found.tokens_per_step > 1.2


@gpu
@pytest.mark.parametrize("cache", [model.SplitCache, model.PagedCache])
@pytest.mark.parametrize("size", [4, 16, 64])
def test_tiny_llama_writes_the_same_text_by_drafts_on_the_gpu(cache, size):
    llama, tokenizer = model.tiny(torch.float32)
    prompts = model.compare.prompts(tokenizer, 8).cuda()
    kernel = attention_tree.attention_tree
    with model.compare.exact_float32():
        found, _ = drafted(llama, cache, prompts, 200, draft.lookup, size, kernel)
        assert torch.equal(found.tokens, model.generate(llama, prompts, 200))
    assert found.tokens_per_step > 1.2


def test_a_cache_without_room_for_the_tree(llama):
    cache = made(SPLIT, llama, 1, 20)
    with pytest.raises(ValueError, match="need a cache of 21 tokens, got 20"):
        model.generate_drafted(llama, tokens(1, 7), 6, cache, size=8)


@pytest.mark.parametrize("make", [QUANTIZED, SHARED_PREFIX, None])
def test_a_cache_that_takes_no_trees_is_refused_before_it_is_read_into(llama, make):
    cache = made(make, llama, 1, 40) if make else llama.new_cache(1, 40)
    for refused in (
        lambda: model.generate_drafted(llama, tokens(1, 7), 6, cache, size=8),
        lambda: speculative.TreeView(cache, [draft.Tree([1])], 1),
    ):
        with pytest.raises(ValueError, match=f"PagedCache, got {type(cache).__name__}"):
            refused()
    assert llama(tokens(1, 7), cache=cache).shape[1] == 7  # nothing was written


def test_codes_are_not_moved(llama):
    cache = made(QUANTIZED, llama, 1, 20)
    places = torch.zeros(1, 1, dtype=torch.long)
    with pytest.raises(NotImplementedError, match="SplitCache or PagedCache"):
        cache.move(places, places)

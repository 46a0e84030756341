"""A captured decode step: what it asks for, how it counts, and on a GPU what it says."""

from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from synthetic_caches import PAGED, SPLIT, made, small, tokens

from kernelbook import backend, model
from kernelbook.model import captured

gpu = pytest.mark.skipif(not backend.GPU, reason="no GPU: nothing was captured")
CACHES = [model.SplitCache, model.PagedCache, model.SharedPrefixCache]


class RecordedStep:
    """A graph's stand-in on the CPU: a replay does what the device would, the host counts nothing.

    Recording runs nothing, so what the recorded step did to device memory is taken back.
    """

    def __init__(self, llama, cache):
        self.llama, self.cache, self.step = llama, cache, None

    @contextmanager
    def recording(self, graph):
        lengths = self.cache.lengths.clone()
        yield
        self.cache.lengths.copy_(lengths)

    def replay(self):
        counted = self.cache.counted
        self.step.logits.copy_(self.llama(self.step.tokens, cache=self.cache))
        self.cache.counted = counted


@pytest.fixture
def no_gpu_needed(monkeypatch):
    """`capture` with stand-ins for what needs a GPU; returns a function that makes a step."""

    def recorded(llama, cache):
        stand_in = RecordedStep(llama, cache)
        stream = type("Stream", (), {"wait_stream": lambda *_: None})
        monkeypatch.setattr(captured.backend, "GPU", True)
        monkeypatch.setattr(torch.cuda, "Stream", stream)
        monkeypatch.setattr(torch.cuda, "current_stream", stream)
        monkeypatch.setattr(torch.cuda, "stream", nullcontext)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: stand_in)
        monkeypatch.setattr(torch.cuda, "graph", stand_in.recording)
        stand_in.step = model.capture(llama, cache)
        return stand_in.step

    return recorded


@pytest.mark.parametrize("cache", [SPLIT, PAGED])
def test_replays_follow_the_growing_text(no_gpu_needed, cache):
    llama, text = small(), tokens(2, 12)
    cache = made(cache, llama, 2, 12)
    with torch.inference_mode():
        whole = llama(text)
        llama(text[:, :5], cache=cache)
        step = no_gpu_needed(llama, cache)
        assert cache.lengths.tolist() == cache.counted == [5, 5]  # capturing is not a step
        for place in range(5, 12):
            found = step(text[:, place : place + 1])
            torch.testing.assert_close(found[:, 0], whole[:, place], rtol=1e-4, atol=1e-4)
            assert cache.lengths.tolist() == cache.counted == [place + 1] * 2
        with pytest.raises(ValueError, match="holds 12 tokens, 13 are needed"):
            step(text[:, :1])


def test_generation_by_replays(no_gpu_needed, monkeypatch):
    llama, prompts = small(), tokens(2, 6)
    cache = made(SPLIT, llama, 2, 16)
    make = no_gpu_needed  # generate captures by itself
    monkeypatch.setattr("kernelbook.model.generation.capture", make)
    found = model.generate(llama, prompts, 10, cache=cache, captured=True)
    assert torch.equal(found, model.generate(llama, prompts, 10))


def test_a_length_on_the_host_cannot_be_captured():
    llama = small()
    with pytest.raises(ValueError, match="KVCache keeps its length on the host"):
        model.capture(llama, llama.new_cache(2, 8))


@pytest.mark.skipif(backend.GPU, reason="there is a GPU")
def test_without_a_gpu_capture_says_so():
    llama = small()
    with pytest.raises(RuntimeError, match="a CUDA graph needs a GPU, and there is none here"):
        model.capture(llama, made(SPLIT, llama, 2, 8))


@gpu
@pytest.mark.parametrize("cache", CACHES)
def test_the_text_of_replays_is_the_same(cache):
    shared = 40 if cache is model.SharedPrefixCache else 0
    assert model.text_with(cache, 8, 200, shared=shared, captured=True).equal


@gpu
@pytest.mark.parametrize("cache", [model.SplitCache, partial(model.PagedCache, page_size=8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_replay_gives_the_logits_of_a_step(cache, dtype):
    llama, _ = model.tiny(dtype)
    text = torch.randint(1024, (3, 40), device="cuda")
    caches = [made(cache, llama, 3, 40) for _ in range(2)]
    with torch.inference_mode():
        for one in caches:
            llama(text[:, :7], cache=one)
        step = model.capture(llama, caches[0])
        for place in range(7, 40):
            token = text[:, place : place + 1]
            torch.testing.assert_close(step(token), llama(token, cache=caches[1]))
    assert caches[0].lengths.tolist() == caches[0].counted == [40] * 3


@gpu
def test_a_full_cache_stops_replays():
    llama, _ = model.tiny()
    cache = made(model.SplitCache, llama, 1, 8)
    with torch.inference_mode():
        llama(torch.zeros(1, 7, dtype=torch.long, device="cuda"), cache=cache)
    step = model.capture(llama, cache)
    step(torch.zeros(1, 1, dtype=torch.long))
    with pytest.raises(ValueError, match="holds 8 tokens, 9 are needed"):
        step(torch.zeros(1, 1, dtype=torch.long))

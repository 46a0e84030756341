"""Helpers for tests of caches: a small random model, and each cache with its plain reference."""

from functools import partial

import torch

from kernelbook import model
from kernelbook.kernels import (
    attention_cascade,
    attention_decode,
    attention_paged,
    attention_quantized,
    kv_quantize,
)

SPLIT = partial(model.SplitCache, attention=attention_decode.reference)
PAGED = partial(model.PagedCache, attention=attention_paged.reference)
QUANTIZED = partial(
    model.QuantizedCache,
    attention=attention_quantized.reference,
    quantize=kv_quantize.reference,
)
SHARED_PREFIX = partial(model.SharedPrefixCache, attention=attention_cascade.reference)


def small(layers: int = 2, seed: int = 3):
    """A model whose text depends on all of its context: random weights, fp32, on the CPU."""
    config = model.LlamaConfig(61, 48, 80, layers, 4, 2, 16, context=256)
    return model.random_model(config, torch.float32, "cpu", seed)


def made(cache, llama, batch: int, capacity: int, **options):
    """A cache for this model."""
    return cache(llama.config, batch, capacity, llama.dtype, llama.device, **options)


def tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(61, (batch, length), generator=generator)


def filled(cache, llama):
    """The cache after a prompt of 9 tokens, a chunk of 3 and a step."""
    text = tokens(2, 13)
    with torch.inference_mode():
        for part in (text[:, :9], text[:, 9:12], text[:, 12:]):
            llama(part, cache=cache)
    return cache

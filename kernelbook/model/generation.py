"""Greedy generation: the same tokens every time, so that changes of the text mean something."""

from functools import partial

import torch

from kernelbook.model.captured import capture
from kernelbook.model.llama import Llama


@torch.inference_mode()
def generate(
    model: Llama, tokens: torch.Tensor, n: int, cached: bool = True, cache=None, captured=False
) -> torch.Tensor:
    """The n tokens after `tokens` [B, S], each the most likely one; returns [B, n].

    cached    the prompt is read once (prefill) and each step reads one token (decode); without,
              every step reads the whole text again
    cache     which one; default a new KVCache. What it already holds comes before `tokens`.
    captured  decode steps are replays of one CUDA graph (a GPU, and a cache of `decode_caches`)
    Nothing is copied to the host. Raises ValueError for tokens of another shape.
    """
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise ValueError(f"tokens must be [batch, at least 1], got {list(tokens.shape)}")
    tokens = tokens.to(model.device)
    if not cached:
        return _generate_again(model, tokens, n)
    if cache is None:
        cache = model.new_cache(len(tokens), tokens.shape[1] + n)
    step, chosen = partial(model, cache=cache, last_only=True), []
    for _ in range(n):
        tokens = step(tokens).argmax(-1)  # [B, 1]
        chosen.append(tokens)
        if captured and len(chosen) == 1:
            step = capture(model, cache)
    return torch.cat(chosen, dim=1) if chosen else tokens[:, :0]


def _generate_again(model: Llama, text: torch.Tensor, n: int) -> torch.Tensor:
    """Without a cache: each step reads the whole text."""
    for _ in range(n):
        text = torch.cat((text, model(text, last_only=True).argmax(-1)), dim=1)
    return text[:, text.shape[1] - n :]

"""Greedy generation: the same tokens every time, so that changes of the text mean something."""

import torch

from kernelbook.model.llama import Llama


@torch.inference_mode()
def generate(model: Llama, tokens: torch.Tensor, n: int, cached: bool = True) -> torch.Tensor:
    """The n tokens after `tokens` [B, S], each the most likely one; returns [B, n].

    With `cached` the prompt is read once (prefill) and each step reads one token (decode);
    without, every step reads the whole text again. Nothing is copied to the host.
    """
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise ValueError(f"tokens must be [batch, at least 1], got {list(tokens.shape)}")
    tokens = tokens.to(model.device)
    batch, length = tokens.shape
    cache = model.new_cache(batch, length + n) if cached else None
    text, step = tokens, tokens
    for _ in range(n):
        logits = model(step, cache=cache, last_only=True)  # [B, 1, vocab]
        chosen = logits.argmax(-1)  # [B, 1]
        text = torch.cat((text, chosen), dim=1)
        step = chosen if cached else text
    return text[:, length:]

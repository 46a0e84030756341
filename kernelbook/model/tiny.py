"""The course's own small Llama: 3 million weights, taught on Shakespeare's plays."""

import math
from pathlib import Path

import torch
import torch.nn.functional as F

from kernelbook import backend
from kernelbook.model.llama import Llama
from kernelbook.model.loader import load
from kernelbook.model.tokenizer import load_tokenizer

FOLDER = Path(__file__).resolve().parents[2] / "data" / "tiny_llama"


def tiny(dtype: torch.dtype = torch.float32, device: str | None = None):
    """(model, tokenizer) of data/tiny_llama, on the GPU where there is one."""
    return load(FOLDER, dtype, device or backend.DEVICE), load_tokenizer(FOLDER)


def held_out_text() -> str:
    """An excerpt of a play that the model never saw in training."""
    return (FOLDER / "held_out.txt").read_text()


@torch.inference_mode()
def bits_per_byte(model: Llama, tokenizer, text: str, context: int | None = None) -> float:
    """Mean bits the model needs for a byte of `text`, in windows of `context` tokens.

    Windows overlap by half, so that every token but the first half window has at least half a
    context before it. The first token is predicted from nothing and counted as uniform.
    """
    context = context or model.config.context
    ids = torch.tensor(tokenizer.encode(text).ids, device=model.device)
    nats = math.log(model.config.vocab)
    for start in range(0, max(1, len(ids) - 1), context // 2):
        window = ids[start : start + context + 1]
        losses = F.cross_entropy(model(window[None, :-1])[0].float(), window[1:], reduction="none")
        fresh = losses if start == 0 else losses[context // 2 :]
        nats += fresh.double().sum().item()
    return nats / math.log(2) / len(text.encode())

"""Did a swapped attention change what the model says? Exactly in fp32, within rounding below.

Greedy text in half precision flips on rounding alone, so there logits are compared, and the
token chosen at each position of a given text (teacher forcing).
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from kernelbook.model.attention import plain_attention
from kernelbook.model.generation import generate
from kernelbook.model.tiny import held_out_text, tiny


@contextmanager
def exact_float32():
    """fp32 matrix products in fp32, not TF32, whose error of 3e-4 would flip tokens."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def prompts(tokenizer, count: int = 8, length: int = 64) -> torch.Tensor:
    """`count` passages of `length` tokens, evenly spaced over the held-out text."""
    ids = torch.tensor(tokenizer.encode(held_out_text()).ids)
    starts = torch.linspace(0, len(ids) - length, count).long()
    return torch.stack([ids[start : start + length] for start in starts])


def text_unchanged(
    attention: Callable,
    prompts: int = 8,
    tokens: int = 200,
    prompt_length: int = 64,
    device: str | None = None,
) -> bool:
    """Whether the tiny model writes the same greedy text with `attention` as with the plain one.

    fp32 throughout, TF32 off; `prompts` passages of `prompt_length` tokens are continued by
    `tokens` tokens, each attention call (prefill and decode) made by `attention`.
    """
    return swapped_text(attention, prompts, tokens, prompt_length, device).equal


@dataclass(frozen=True)
class Texts:
    """What the model wrote with the plain and with the swapped attention, [prompts, tokens]."""

    plain: torch.Tensor
    swapped: torch.Tensor
    tokenizer: object

    @property
    def equal(self) -> bool:
        """Same tokens, all of them."""
        return torch.equal(self.plain, self.swapped)

    def text(self, prompt: int = 0) -> str:
        """The continuation of one prompt, as written with the swapped attention."""
        return self.tokenizer.decode(self.swapped[prompt].tolist())


def swapped_text(attention, count=8, tokens=200, prompt_length=64, device=None) -> Texts:
    """Both greedy texts of `text_unchanged`, to show them."""
    model, tokenizer = tiny(torch.float32, device)
    start = prompts(tokenizer, count, prompt_length)
    with exact_float32():
        plain = generate(model, start, tokens)
        with model.using(attention=attention):
            swapped = generate(model, start, tokens)
    return Texts(plain, swapped, tokenizer)


@dataclass(frozen=True)
class HalfPrecision:
    """Half precision against plain fp32: logit errors ‖a - b‖ / ‖b‖, shares of equal choices."""

    error: float  # with the swapped attention
    plain_error: float  # with the plain attention, same dtype
    agreement: float
    plain_agreement: float
    tokens: int


@torch.inference_mode()
def half_precision(attention, dtype=torch.bfloat16, count=8, length=256, device=None):
    """Logits and teacher-forced choices of `attention` in fp16 or bf16 against plain fp32."""
    exact, tokenizer = tiny(torch.float32, device)
    half, _ = tiny(dtype, device)
    text = prompts(tokenizer, count, length).to(exact.device)
    with exact_float32():
        truth = exact(text).double()
    found = {}
    for name, function in {"swapped": attention, "plain": plain_attention}.items():
        with half.using(attention=function):
            logits = half(text).double()
        error = ((logits - truth).norm() / truth.norm()).item()
        found[name] = error, (logits.argmax(-1) == truth.argmax(-1)).double().mean().item()
    return HalfPrecision(
        error=found["swapped"][0],
        plain_error=found["plain"][0],
        agreement=found["swapped"][1],
        plain_agreement=found["plain"][1],
        tokens=text.numel(),
    )

"""Did a swapped attention or cache change what the model says? Exactly in fp32, else how far.

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


def prompts(tokenizer, count: int = 8, length: int = 64, shared: int = 0) -> torch.Tensor:
    """`count` passages of `length` tokens, evenly spaced over the held-out text.

    The first `shared` tokens of all are those of the first one.
    """
    ids = torch.tensor(tokenizer.encode(held_out_text()).ids)
    starts = torch.linspace(0, len(ids) - length, count).long()
    passages = torch.stack([ids[start : start + length] for start in starts])
    passages[:, :shared] = passages[0, :shared].clone()
    return passages


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
    """What the model wrote in the plain and in the swapped way, [prompts, tokens]."""

    plain: torch.Tensor
    swapped: torch.Tensor
    tokenizer: object

    @property
    def equal(self) -> bool:
        """Same tokens, all of them."""
        return torch.equal(self.plain, self.swapped)

    def text(self, prompt: int = 0) -> str:
        """The continuation of one prompt, as written in the swapped way."""
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


def continued(model, start, tokens: int, make_cache, shared=0, captured=False) -> torch.Tensor:
    """Greedy text after `start` [B, S] through a new cache; the arguments are `text_with`'s."""
    count, length = start.shape
    cache = make_cache(model.config, count, length + tokens, model.dtype, model.device)
    if shared:
        with torch.inference_mode():
            model(start[:1, :shared], cache=cache)
    return generate(model, start[:, shared:], tokens, cache=cache, captured=captured)


def text_with(
    make_cache, count=8, tokens=200, prompt_length=64, device=None, shared=0, captured=False
) -> Texts:
    """Greedy text of the tiny model through another cache, beside the plain one; fp32, no TF32.

    make_cache  (config, batch, capacity, dtype, device) -> cache: a class of `decode_caches`, or
                a partial of it
    shared      tokens that all prompts begin with; the cache gets them first, as one sequence
    captured    decode steps replayed from one CUDA graph (GPU only)
    """
    model, tokenizer = tiny(torch.float32, device)
    start = prompts(tokenizer, count, prompt_length, shared).to(model.device)
    with exact_float32():
        plain = generate(model, start, tokens)
        swapped = continued(model, start, tokens, make_cache, shared, captured)
    return Texts(plain, swapped, tokenizer)


@dataclass(frozen=True)
class KVAccuracy:
    """Logits through one cache against those of plain KV in the same dtype."""

    error: float  # ‖a - b‖ / ‖b‖ of all logits
    agreement: float  # share of positions at which the most likely token is the same
    tokens: int


@torch.inference_mode()
def kv_accuracy(make_cache, dtype=torch.float32, count=8, length=256, device=None) -> KVAccuracy:
    """How far the logits of a given text move when K and V are kept as `make_cache` keeps them.

    Teacher forcing: the first token is read alone, the rest in one step that attends to what the
    cache kept, as decode would token by token. `make_cache` as for `text_with`.
    """
    model, tokenizer = tiny(dtype, device)
    text = prompts(tokenizer, count, length).to(model.device)

    def logits(cache):
        return torch.cat([model(part, cache=cache) for part in (text[:, :1], text[:, 1:])], 1)

    with exact_float32():
        plain = logits(model.new_cache(count, length)).double()
        kept = logits(make_cache(model.config, count, length, dtype, model.device)).double()
    error = ((kept - plain).norm() / plain.norm()).item()
    agreement = (kept.argmax(-1) == plain.argmax(-1)).double().mean().item()
    return KVAccuracy(error, agreement, text.numel())


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

"""The small model through each KV cache: the same text in fp32, the error of 8 bits, drafts.

- `decode_text`: greedy text through contiguous, split, paged and shared-prefix caches, and through
  replays of one captured step while lengths grow: whether it stays the same, and the time of it
  all (capture included).
- `kv_accuracy`: logits and teacher-forced choices with K and V in 8 bits, against 16 or 32.
- `tree_text`: n-gram lookup drafts verified as a tree: the same text, in how many steps.
"""

from functools import partial

import torch

from benchmarks.prefill_step import in_turn
from kernelbook import backend, model
from kernelbook.kernels import (
    attention_cascade,
    attention_decode,
    attention_paged,
    attention_quantized,
    attention_tree,
    kv_quantize,
)
from kernelbook.model import compare, draft

PROMPTS, TOKENS, PROMPT_LENGTH = 8, 200, 64
SHARED = 40  # tokens that all prompts begin with where a cache shares them
LENGTH = 256  # of the texts whose logits are compared
NODES = (4, 8, 16, 32, 64)
FP8 = torch.float8_e4m3fn


def caches(reference: bool = False) -> dict:
    """Ways to keep KV exactly; with `reference` attended to in plain PyTorch."""
    made = {
        "split": (model.SplitCache, attention_decode),
        "paged": (model.PagedCache, attention_paged),
        "shared_prefix": (model.SharedPrefixCache, attention_cascade),
    }
    if not reference:
        return {name: cache for name, (cache, _) in made.items()}
    return {name: partial(cache, attention=file.reference) for name, (cache, file) in made.items()}


def quantized_caches(reference: bool = False) -> dict:
    """Ways to keep KV in fewer bits, beside the unquantized one."""
    plain = {
        "attention": attention_quantized.reference,
        "quantize": kv_quantize.reference,
    }
    options = plain if reference else {}
    made = {"unquantized": caches(reference)["split"]}
    made["int8"] = partial(model.QuantizedCache, **options)
    if reference or backend.capability() >= (8, 9):
        made["fp8"] = partial(model.QuantizedCache, to=FP8, **options)
    return made


def ways(captured: bool, reference: bool = False) -> dict:
    """variant -> (make_cache, shared tokens, captured)."""
    found = {"plain": (model.KVCache, 0, False)}
    for name, cache in caches(reference).items():
        shared = SHARED if name == "shared_prefix" else 0
        found[name] = cache, shared, False
        if captured:
            found[f"{name}_captured"] = cache, shared, True
    return found


def texts(writer, captured=True, reference=False, tokens=TOKENS, count=PROMPTS) -> None:
    """`decode_text`: every way beside the plain one with the same prompts."""
    llama, tokenizer = model.tiny(torch.float32)
    for shared in (0, SHARED):
        start = compare.prompts(tokenizer, count, PROMPT_LENGTH, shared).to(llama.device)
        wanted = {n: w for n, w in ways(captured, reference).items() if w[1] in (0, shared)}
        if shared:
            wanted = {n: w for n, w in wanted.items() if n.startswith(("plain", "shared"))}
        calls = {
            name: partial(compare.continued, llama, start, tokens, make, common, replayed)
            for name, (make, common, replayed) in wanted.items()
        }
        with compare.exact_float32():
            written = {name: call() for name, call in calls.items()}
            times = in_turn(calls, samples=3, warm=False)
        for name, text in written.items():
            same = torch.equal(text, written["plain"])
            print(f"text through {name:22} same: {same}, {times[name]}", flush=True)
            writer.add(
                op="decode_text",
                variant=name,
                shape={
                    "prompts": count,
                    "tokens": tokens,
                    "prompt_length": PROMPT_LENGTH,
                    "shared": shared,
                },
                dtype="fp32",
                timing=times[name],
                same_text=same,
            )


def kv_bytes(config, name: str, dtype) -> int:
    """Bytes of K and V that a token leaves in all layers, scales of 4 bytes a head included."""
    if name == "unquantized":
        return config.kv_bytes_per_token(dtype.itemsize)
    return config.kv_bytes_per_token(1) + 8 * config.layers * config.kv_heads


def accuracy(writer, reference=False, length=LENGTH, count=PROMPTS) -> None:
    """`kv_accuracy`: fp32 and bf16, each against its own unquantized KV."""
    llama, _ = model.tiny(torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        for name, cache in quantized_caches(reference).items():
            found = model.kv_accuracy(cache, dtype, count, length)
            print(f"KV {name:12} in {dtype}: {found}", flush=True)
            writer.add(
                op="kv_accuracy",
                variant=name,
                shape={"prompts": count, "length": length},
                dtype=dtype,
                logit_error=found.error,
                agreement=found.agreement,
                tokens=found.tokens,
                kv_bytes_per_token=kv_bytes(llama.config, name, dtype),
            )


def drafters(reference: bool = False) -> dict:
    """variant -> (make_cache, draft, sizes of a tree); a tree of one node is plain decode."""
    made = caches(reference)
    return {
        "one_token": (made["split"], draft.lookup, (1,)),
        "contiguous": (made["split"], draft.lookup, NODES),
        "paged": (made["paged"], draft.lookup, (16,)),
        "contiguous_chain": (made["split"], draft.chain, (16,)),
    }


def drafted(llama, start, tokens, make_cache, guess, size, attention) -> model.speculative.Drafted:
    """Text by drafts through a new cache."""
    count, length = start.shape
    capacity = length + tokens + size
    cache = make_cache(llama.config, count, capacity, llama.dtype, llama.device)
    return model.generate_drafted(llama, start, tokens, cache, guess, size, attention)


def trees(writer, reference=False, tokens=TOKENS, count=PROMPTS) -> None:
    """`tree_text`: the greedy text, and tokens a verification gives."""
    llama, tokenizer = model.tiny(torch.float32)
    start = compare.prompts(tokenizer, count, PROMPT_LENGTH).to(llama.device)
    attention = attention_tree.reference if reference else attention_tree.attention_tree
    calls = {
        (name, size): partial(drafted, llama, start, tokens, make, guess, size, attention)
        for name, (make, guess, sizes) in drafters(reference).items()
        for size in sizes
    }
    with compare.exact_float32():
        greedy = model.generate(llama, start, tokens)
        written = {key: call() for key, call in calls.items()}
        times = in_turn(calls, samples=2, warm=False)
    for (name, size), found in written.items():
        same = torch.equal(found.tokens, greedy)
        gain = found.tokens_per_step
        print(f"drafts {name:16} {size:2} nodes: same {same}, {gain:.2f} tokens a step", flush=True)
        writer.add(
            op="tree_text",
            variant=name,
            shape={
                "prompts": count,
                "tokens": tokens,
                "prompt_length": PROMPT_LENGTH,
                "nodes": size,
            },
            dtype="fp32",
            timing=times[name, size],
            same_text=same,
            tokens_per_step=gain,
            steps=found.steps,
            drafted=found.drafted,
            accepted=found.accepted,
        )


def run(writer) -> None:
    """All three; without a GPU nothing, as the kernels are what is tried."""
    if not backend.GPU:
        print("decode_text: skipped, no GPU")
        return
    for part in (texts, accuracy, trees):
        part(writer)

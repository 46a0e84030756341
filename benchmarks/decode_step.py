"""One decode step of the 1B and 8B shapes with each attention: time a token, attention's share.

- `decode_step`: one token in, logits out, behind 2k to 128k tokens of random KV, batch 1, bf16,
  random weights. The step is replayed from a CUDA graph, so launches are not what is timed.
- `decode_attention_share`: the attention calls of all layers of that step alone, the same way, and
  their `share` of it: the p of Amdahl's law.

All go through one `SplitCache`, full but for one token, so only attention differs. `prefill_kernel`
has a program a query head, `one_split` a program a KV head.
"""

from functools import partial

import torch

from benchmarks.prefill_step import cudnn
from kernelbook import backend, model, timing
from kernelbook.kernels import attention_decode as decode
from kernelbook.work import Work

PRESETS = ("1b", "8b")
CONTEXTS = (2048, 8192, 32768, 131072)
DTYPE = torch.bfloat16
PEERS = ("sdpa", "sdpa_cudnn")
REPLAYS = 20
NO_KERNEL = ("No available kernel", "No viable backend")  # SDPA's words, on a GPU and without


def of_full(attention):
    """An attention that knows no lengths, called as a cache does: here the cache is full."""

    def attend(q, k, v, lengths=None, causal=False, scale=None):
        return attention(q, k, v, scale=scale)  # one query sees everything: no mask

    return attend


def attentions() -> dict:
    """What is compared, and what a user would pick."""
    from kernelbook.kernels.attention_prefill import attention_prefill

    return {
        "plain": of_full(model.plain_attention),
        "prefill_kernel": of_full(attention_prefill),
        "one_split": partial(decode.attention_decode, splits=1),
        "split_kv": decode.attention_decode,
        "sdpa": of_full(model.sdpa_attention),
        "sdpa_cudnn": of_full(cudnn),
    }


def filled_cache(config, context: int, dtype, device) -> model.SplitCache:
    """A cache with room for one more token; the others are random, never zeros."""
    cache = model.SplitCache(config, 1, context, dtype, device)
    for layer in (*cache.k, *cache.v):
        layer.normal_()
    cache.set_lengths([context - 1])
    return cache


def step(llama, cache, token, attention) -> torch.Tensor:
    """One decode step, after which the cache is as before: logits [1, 1, vocab]."""
    cache.attention = attention
    with torch.inference_mode(), cache.undone():
        return llama(token, cache=cache)


def attention_alone(cache, queries, lengths, attention) -> None:
    """The attention calls of a step, and nothing else."""
    with torch.inference_mode():
        for q, k, v in zip(queries, cache.k, cache.v, strict=True):
            attention(q, k, v, lengths=lengths, causal=True, scale=q.shape[-1] ** -0.5)


def attention_work(config, context: int, dtype=DTYPE) -> Work:
    """Useful work of all layers' attention: each key and value read once."""
    sizes = (1, config.heads, config.kv_heads, context, config.head_dim)
    return decode.work(*sizes, dtype) * config.layers


def step_work(config, context: int, dtype=DTYPE) -> Work:
    """Useful work of a step: each weight that is multiplied, and KV, read once."""
    table = config.vocab * config.hidden
    norms = (2 * config.layers + 1) * config.hidden
    weights = config.parameters - (0 if config.tied else table)  # of an embedding table one row
    attention = attention_work(config, context, dtype)
    flops = 2 * (weights - norms) + attention.flops
    kv = config.kv_bytes_per_token(dtype.itemsize)
    return Work(flops, weights * dtype.itemsize + kv * context, config.vocab * dtype.itemsize + kv)


def fitting(call, functions: dict, record) -> dict:
    """The attentions that run here; one that needs more memory than there is is recorded so."""
    kept = {}
    for name, attention in functions.items():
        try:
            call(attention)
            kept[name] = attention
        except torch.cuda.OutOfMemoryError:
            record(op="decode_step", variant=name, out_of_memory=True)
            torch.cuda.empty_cache()
        except RuntimeError as error:
            if not str(error).startswith(NO_KERNEL):
                raise
            print(f"decode_step: {name} has no kernel for this GPU")
    return kept


def times_of(call, functions: dict) -> dict:
    """name -> Timing of `call(attention)`, replays of one graph each, in turn."""
    calls = {name: partial(call, attention) for name, attention in functions.items()}
    options = {"graph": True, "calls": 1, "repeats": REPLAYS, "warmup_ms": 10}
    return timing.side_by_side(calls, **options)


def splits_of(config, context: int, cache) -> dict:
    """Splits that the own decode kernels take."""
    sizes = (1, config.heads, config.kv_heads, config.head_dim, 1)
    chosen = decode.default_splits(*sizes, *[cache.k.dtype] * 2, cache.k.device, context)
    return {"split_kv": {"splits": chosen}, "one_split": {"splits": 1}}


def measure(writer, preset: str, llama, context: int) -> None:
    """Rows of one context: the steps in turn, then the attention of each in turn."""
    config, device, dtype = llama.config, llama.device, llama.dtype
    cache = filled_cache(config, context, dtype, device)
    token = torch.randint(config.vocab, (1, 1), device=device)
    size = (config.layers, 1, config.heads, 1, config.head_dim)
    queries = torch.randn(size, dtype=dtype, device=device)
    lengths = torch.full((1,), context, dtype=torch.int32, device=device)

    def record(**row):
        shape = {"preset": preset, "batch": 1, "context": context}
        writer.add(shape=shape, dtype=dtype, peer=row["variant"] in PEERS, **row)

    whole = partial(step, llama, cache, token)
    alone = partial(attention_alone, cache, queries, lengths)
    functions = fitting(whole, attentions(), record)
    splits = splits_of(config, context, cache)
    steps, shares = times_of(whole, functions), times_of(alone, functions)
    for name in functions:
        p = shares[name].median_us / steps[name].median_us
        extra = splits.get(name, {})
        print(
            f"{preset} {context:6} {name:14} step {steps[name].median_us:9,.0f} us, "
            f"attention {p:.1%}",
            flush=True,
        )
        work = step_work(config, context, dtype)
        record(op="decode_step", variant=name, timing=steps[name], work=work, **extra)
        row = {"timing": shares[name], "work": attention_work(config, context, dtype)}
        share = round(p, 4)
        record(op="decode_attention_share", variant=name, share=share, **row, **extra)


def run(writer) -> None:
    """Both shapes, from short to long contexts; without a GPU nothing."""
    if not backend.GPU:
        print("decode_step: skipped, no GPU")
        return
    for preset in PRESETS:
        llama = model.random_model(preset, DTYPE)
        for context in CONTEXTS:
            measure(writer, preset, llama, context)
            torch.cuda.empty_cache()
        del llama
        torch.cuda.empty_cache()

"""One decode step of the 1B and 8B shapes with each KV cache: time a token, attention's share.

- `kv_step`: one token in, logits out, random weights and KV, bf16, replayed from a CUDA graph; KV
  contiguous in bf16, on shuffled pages of 16, in int8 and in fp8.
- `kv_step_attention`: of that step all layers' writing of the new token and attention alone, the
  same way, and their `share` of it: the p of Amdahl's law, and what 8 bits make of it.
"""

from functools import partial

import torch

from benchmarks.decode_step import attention_work, step_work, times_of
from kernelbook import backend, model
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_paged as paged
from kernelbook.kernels import attention_quantized as quantized
from kernelbook.work import Work

PRESETS = ("1b", "8b")
CELLS = ((1, 2048), (1, 8192), (1, 32768), (1, 131072), (16, 8192))  # batch, context
DTYPE = torch.bfloat16
PAGE = 16
CACHES = {
    "bf16": model.SplitCache,
    "paged": partial(model.PagedCache, page_size=PAGE),
    "int8": model.QuantizedCache,
    "fp8": partial(model.QuantizedCache, to=torch.float8_e4m3fn),
}


def filled(make_cache, config, batch: int, context: int, dtype, device):
    """A cache with room for one more token in each sequence; the others are random."""
    cache = make_cache(config, batch, context, dtype, device)
    spread = 40.0 if cache.k.dtype.itemsize == 1 else 1.0
    for layer in (*cache.k, *cache.v):
        layer.copy_(torch.randn(layer.shape, dtype=dtype, device=device) * spread)
    if spread > 1:
        cache.k_scale.fill_(1 / spread)
        cache.v_scale.fill_(1 / spread)
    cache.set_lengths([context - 1] * batch)
    return cache


def step(llama, token, cache) -> torch.Tensor:
    """One decode step, after which the cache is as before: logits [B, 1, vocab]."""
    with torch.inference_mode(), cache.undone():
        return llama(token, cache=cache)


def attention_alone(q, k, v, cache) -> None:
    """Of a step, all layers' writing and attention; q [B, Hq, 1, D], k and v [B, Hkv, 1, D]."""
    with torch.inference_mode():
        cache.positions(1)
        for layer in range(len(cache.k)):
            cache.attend(layer, q, k, v, q.shape[-1] ** -0.5, None)


def work_of(variant: str, config, batch: int, context: int, dtype) -> tuple[Work, Work]:
    """Useful work of the step and of its attention; weights are read once for the batch."""
    sizes = (batch, config.heads, config.kv_heads, [context] * batch, config.head_dim, dtype)
    if variant == "paged":
        attention = paged.work(*sizes, page_size=PAGE) * config.layers
    else:
        attention = (decode if variant == "bf16" else quantized).work(*sizes) * config.layers
    one, dense = step_work(config, context, dtype), attention_work(config, context, dtype)
    weights = one.read - config.kv_bytes_per_token(dtype.itemsize) * context
    flops = (one.flops - dense.flops) * batch + attention.flops
    return Work(flops, weights + attention.read, one.written * batch), attention


def measure(writer, preset: str, llama, batch: int, context: int) -> None:
    """Rows of one cell: the steps in turn, then the attention of each in turn."""
    config, device, dtype = llama.config, llama.device, llama.dtype
    eight_bit = device.type == "cpu" or backend.capability() >= (8, 9)
    caches = {
        name: filled(make, config, batch, context, dtype, device)
        for name, make in CACHES.items()
        if name != "fp8" or eight_bit
    }
    token = torch.randint(config.vocab, (batch, 1), device=device)
    q, k, v = (
        torch.randn(batch, heads, 1, config.head_dim, dtype=dtype, device=device)
        for heads in (config.heads, config.kv_heads, config.kv_heads)
    )
    steps = times_of(partial(step, llama, token), caches)
    alone = times_of(partial(attention_alone, q, k, v), caches)
    shape = {"preset": preset, "batch": batch, "context": context}
    for name in caches:
        whole, attention = work_of(name, config, batch, context, dtype)
        share = round(min(1.0, alone[name].median_us / steps[name].median_us), 4)
        print(f"{preset} {batch:2} x {context:6} {name:6} step {steps[name].median_us:9,.0f} us, "
              f"attention {share:.1%}", flush=True)  # fmt: skip
        row = {"variant": name, "shape": shape, "dtype": dtype}
        writer.add(op="kv_step", timing=steps[name], work=whole, **row)
        writer.add(op="kv_step_attention", timing=alone[name], work=attention, share=share, **row)


def run(writer) -> None:
    """Both shapes, from short to long contexts; without a GPU nothing."""
    if not backend.GPU:
        print("kv_step: skipped, no GPU")
        return
    for preset in PRESETS:
        llama = model.random_model(preset, DTYPE)
        for batch, context in CELLS:
            measure(writer, preset, llama, batch, context)
            torch.cuda.empty_cache()
        del llama
        torch.cuda.empty_cache()

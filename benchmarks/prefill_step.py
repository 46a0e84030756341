"""Prefill of the 1B shape with each attention: the step, attention's share of it, the text.

- `prefill_step`: tokens to the last token's logits, random weights, bf16. Up to 2k tokens as a CUDA
  graph, for the launches of an eager step take longer than its kernels; beyond, as it is.
- `prefill_step_eager`: the same at 512 tokens with the launches, which hide what the GPU gains.
- `prefill_attention_share`: the attention calls of that step alone (all layers, the step's own
  q, k and v, timed the same way) and their `share` of it: the p of Amdahl's law.
- `tiny_text`: greedy text of the small model in fp32, whether it stays the same, and how far
  bf16 logits are from fp32 ones.
"""

from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernelbook import backend, model, timing
from kernelbook.model import compare
from kernelbook.work import Work

PRESET = "1b"
LENGTHS = (512, 2048, 8192, 32768)
GRAPHED = 2048  # up to here launches, not kernels, would set the eager step's time
DTYPE = torch.bfloat16
PEERS = ("sdpa", "sdpa_cudnn")


def cudnn(q, k, v, causal=False, scale=None):
    """SDPA by cuDNN's kernel, which PyTorch does not choose by itself everywhere."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return model.sdpa_attention(q, k, v, causal, scale)


def attentions() -> dict:
    """What is compared: three steps (Triton, PyTorch), tiled, and what a user would pick."""
    from kernelbook.kernels.attention_naive import attention_naive
    from kernelbook.kernels.attention_prefill import attention_prefill

    return {
        "naive": attention_naive,
        "plain": model.plain_attention,
        "tiled": attention_prefill,
        "sdpa": model.sdpa_attention,
        "sdpa_cudnn": cudnn,
    }


def by_groups(attention):
    """One KV head and its query heads at a time: a fraction of the scores in memory at once."""

    def grouped(q, k, v, causal=False, scale=None):
        parts = zip(q.chunk(k.shape[1], 1), k.split(1, 1), v.split(1, 1), strict=True)
        return torch.cat([attention(*part, causal, scale) for part in parts], dim=1)

    return grouped


def in_turn(variants: dict, samples: int, warm: bool = True) -> dict:
    """Times of calls that take longer than 10 ms: one warm call, then `samples` in turn."""
    found = {name: [] for name in variants}
    for call in variants.values() if warm else ():
        call()
    for turn in range(samples):
        for name in timing.turn_order(list(variants), turn):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            variants[name]()
            end.record()
            torch.cuda.synchronize()
            found[name].append(start.elapsed_time(end) * 1e3)
    return {name: timing.Timing.of(times, "events, warm L2") for name, times in found.items()}


def time_calls(calls: dict, tokens: int) -> dict:
    """Graphs for short steps, single calls for long ones."""
    if tokens <= GRAPHED:
        found = timing.side_by_side(calls, graph=True, calls=1, min_ms=60, warmup_ms=20)
    else:
        found = in_turn(calls, samples=9 if tokens <= 8192 else 3)
    torch.cuda.empty_cache()
    return found


def step_with(llama, tokens, attention):
    """One prefill: [1, 1, vocab] logits of the last token."""
    with torch.inference_mode(), llama.using(attention=attention):
        return llama(tokens, last_only=True)


def attention_inputs(llama, tokens) -> list[tuple]:
    """q, k and v of each layer of a step, with the strides that the model gives them."""
    seen = []

    def watch(q, k, v, causal=False, scale=None):
        seen.append((q, k, v))
        return model.sdpa_attention(q, k, v, causal, scale)

    step_with(llama, tokens, watch)
    return seen


def all_layers(attention, inputs):
    """The attention calls of a step, and nothing else."""
    with torch.inference_mode():
        for q, k, v in inputs:
            attention(q, k, v, causal=True, scale=q.shape[-1] ** -0.5)


def attention_work(config, tokens: int) -> Work:
    """Useful work of all layers' attention: visible pairs only, q, k, v and out crossing once."""
    from kernelbook.kernels import attention_prefill

    sizes = (1, config.heads, config.kv_heads, tokens, tokens, config.head_dim)
    return attention_prefill.work(*sizes, DTYPE, causal=True) * config.layers


def step_work(config, tokens: int) -> Work:
    """Useful work of a step: each weight read once, two FLOPs a weight and token, attention."""
    head = config.vocab * config.hidden
    norms = (2 * config.layers + 1) * config.hidden
    matrices = config.parameters - norms - head * (1 if config.tied else 2)
    flops = 2 * matrices * tokens + 2 * head + attention_work(config, tokens).flops
    return Work(flops, config.parameters * DTYPE.itemsize, config.vocab * DTYPE.itemsize)


def fitting(llama, tokens, functions: dict, record) -> dict:
    """The attentions that run here. One that needs more memory is recorded, then goes by groups."""
    kept = {}
    for name, attention in functions.items():
        try:
            step_with(llama, tokens, attention)
            kept[name] = attention
        except torch.cuda.OutOfMemoryError:
            record(op="prefill_step", variant=name, out_of_memory=True)
            if name == "naive":
                kept["naive_by_groups"] = by_groups(attention)
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            print(f"prefill_step: {name} has no kernel for this GPU")
        torch.cuda.empty_cache()
    return kept


def measure(writer, llama, length: int) -> None:
    """Rows of one length: the steps in turn, then the attention of each in turn."""
    tokens = torch.randint(llama.config.vocab, (1, length), device="cuda")

    def record(**row):
        shape = {"preset": PRESET, "tokens": length}
        writer.add(shape=shape, dtype=DTYPE, peer=row["variant"] in PEERS, **row)

    functions = fitting(llama, tokens, attentions(), record)
    inputs = attention_inputs(llama, tokens)
    steps = {name: partial(step_with, llama, tokens, f) for name, f in functions.items()}
    alone = {name: partial(all_layers, f, inputs) for name, f in functions.items()}
    step, share = time_calls(steps, length), time_calls(alone, length)
    for name in functions:
        p = share[name].median_us / step[name].median_us
        print(f"{length:6} {name:16} step {step[name].median_us:12,.0f} us, attention {p:.1%}")
        work = step_work(llama.config, length)
        record(op="prefill_step", variant=name, timing=step[name], work=work)
        work = attention_work(llama.config, length)
        whole = {"timing": share[name], "work": work, "share": round(p, 4)}
        record(op="prefill_attention_share", variant=name, **whole)
    if length == LENGTHS[0]:
        for name, found in in_turn(steps, samples=15).items():
            record(op="prefill_step_eager", variant=name, timing=found)


def text(writer, prompts: int = 8, tokens: int = 200) -> None:
    """The small model's text with each attention: same or not, and the time it took."""
    llama, tokenizer = model.tiny(torch.float32)
    start = compare.prompts(tokenizer, prompts).cuda()

    def write(attention):
        with llama.using(attention=attention):
            return model.generate(llama, start, tokens)

    # cuDNN has no fp32 kernel
    compared = {name: f for name, f in attentions().items() if name != "sdpa_cudnn"}
    with compare.exact_float32():
        calls = {name: partial(write, attention) for name, attention in compared.items()}
        written = {name: call() for name, call in calls.items()}
        times = in_turn(calls, samples=2, warm=False)
    for name, attention in compared.items():
        half = model.half_precision(attention, DTYPE)
        same = torch.equal(written[name], written["plain"])
        print(f"text with {name:12} same: {same}, bf16 error {half.error:.1e}")
        writer.add(
            op="tiny_text",
            variant=name,
            peer=name in PEERS,
            shape={"prompts": prompts, "tokens": tokens},
            dtype="fp32",
            timing=times[name],
            same_text=same,
            bf16_error=half.error,
            bf16_plain_error=half.plain_error,
            bf16_agreement=half.agreement,
            bf16_plain_agreement=half.plain_agreement,
        )


def run(writer) -> None:
    """Text first, then the steps from short to long; without a GPU nothing."""
    if not backend.GPU:
        print("prefill_step: skipped, no GPU")
        return
    text(writer)
    llama = model.random_model(PRESET, DTYPE)
    for length in LENGTHS:
        measure(writer, llama, length)

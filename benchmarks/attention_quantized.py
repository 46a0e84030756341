"""Decode over int8 and fp8 KV against our bf16, and against dequantizing first.

`dequantize_cudnn` writes bf16 keys and values and calls cuDNN: it reads the codes, writes twice
their bytes and reads those. Also the quantizing kernel itself, a step's tokens and a prompt's.
"""

import torch
from torch.nn.attention import SDPBackend

from benchmarks.attention_decode import DTYPE, inputs, sdpa, shape_of, side_by_side
from kernelbook import backend, timing
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_quantized as quantized
from kernelbook.kernels import kv_quantize as quantize

CODES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
ROWS = ((1, 2048), (1, 8192), (1, 32768), (8, 8192), (64, 2048), (1, 131072), (64, 8192))
PAGE = 16


def all_inputs(shape: dict):
    """q, bf16 k and v, lengths, a table, and codes with scales of k and v for each kind."""
    q, k, v = inputs(shape)
    batch, length = shape["batch"], shape["lengths"]
    lengths = torch.full((batch,), length, dtype=torch.int32, device="cuda")
    table = torch.randperm(batch * length // PAGE, device="cuda").int().view(batch, -1)
    codes = {name: (*quantize.kv_quantize(k, to), *quantize.kv_quantize(v, to))
             for name, to in CODES.items()}  # fmt: skip
    return q, k, v, lengths, table, codes


def bf16(q, k, v, lengths, table, codes):
    return decode.attention_decode(q, k, v, lengths)


def fused(kind: str):
    def call(q, k, v, lengths, table, codes):
        k, k_scale, v, v_scale = codes[kind]
        return quantized.attention_quantized(q, k, v, k_scale, v_scale, lengths)

    return call


def paged(kind: str):
    """The codes' memory taken as a pool: [N, Hkv, PAGE, D], and scales [N, Hkv, PAGE]."""

    def call(q, k, v, lengths, table, codes):
        heads, head_dim = k.shape[1], k.shape[3]
        k, k_scale, v, v_scale = codes[kind]
        k, v = (x.view(-1, heads, PAGE, head_dim) for x in (k, v))
        k_scale, v_scale = (x.view(-1, heads, PAGE) for x in (k_scale, v_scale))
        return quantized.attention_quantized(q, k, v, k_scale, v_scale, lengths, table)

    return call


def dequantized(q, k, v, lengths, table, codes):
    k, k_scale, v, v_scale = codes["int8"]
    k, v = k.to(DTYPE) * k_scale[..., None].to(DTYPE), v.to(DTYPE) * v_scale[..., None].to(DTYPE)
    return sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v)


VARIANTS = {
    "bf16": bf16,
    **{kind: fused(kind) for kind in CODES},
    "int8_paged": paged("int8"),
    "fp8_paged": paged("fp8"),
    "dequantize_cudnn": dequantized,
}


def row(writer, batch: int, length: int) -> None:
    shape = shape_of(batch, length)
    moved = quantized.work(**shape, dtype=DTYPE).bytes  # of the smallest: its inputs pass the L2
    found = side_by_side(VARIANTS, lambda: all_inputs(shape), moved)
    sizes = {**shape, "lengths": [length] * batch}
    for variant, time in found.items():
        if variant == "bf16":
            work = decode.work(**sizes, dtype=DTYPE)
        else:
            page = PAGE if variant.endswith("paged") else 0
            work = quantized.work(**sizes, dtype=DTYPE, page_size=page)
        gain = found["bf16"].median_us / time.median_us if "bf16" in found else 0
        print(f"{batch:3} x {length:6} {variant:17} {time.median_us:8.1f} us, {gain:.2f} x bf16")
        writer.add(
            op="attention_quantized", variant=variant, peer=variant == "dequantize_cudnn",
            shape=shape, dtype=DTYPE, timing=time, work=work,
        )  # fmt: skip
    torch.cuda.empty_cache()


def quantizing(writer, batch: int, tokens: int) -> None:
    """Keys of one step (a token a sequence), or of a prompt."""
    shape = {"batch": batch, "heads": 8, "tokens": tokens, "head_dim": 128}
    for kind, to in CODES.items():
        work = quantize.work(**shape, dtype=DTYPE, to=to)
        sets = timing.rotate(
            lambda: (torch.randn(*shape.values(), device="cuda", dtype=DTYPE),),
            bytes_each=max(work.bytes, 2**20),
        )
        call = sets.bind(lambda x, to=to: quantize.kv_quantize(x, to))
        time = timing.measure(call, graph=True, min_ms=20, warmup_ms=5)
        print(f"kv_quantize {kind} {batch} x {tokens}: {time.per_s(work.bytes) / 1e12:.2f} TB/s")
        writer.add(op="kv_quantize", variant=kind, shape=shape, dtype=DTYPE, timing=time, work=work)


def run(writer) -> None:
    """Contexts 2k to 128k, batches 1 to 64; then quantizing itself."""
    if not backend.GPU:
        print("attention_quantized: skipped, no GPU")
        return
    for batch, length in ROWS:
        row(writer, batch, length)
    for batch, tokens in ((64, 1), (1, 8192)):
        quantizing(writer, batch, tokens)

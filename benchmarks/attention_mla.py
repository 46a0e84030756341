"""MLA decode beside the absorbed products in PyTorch, and beside a copy of the same bytes.

Graph to graph, inputs rotated past the L2. With 16 heads a row of the cache is read for 30 FLOPs a
byte, so the copy is the ceiling; with 128 it is 240, and the tensor cores are.
"""

from functools import partial

import torch

from benchmarks import _kv, _rotated
from kernelbook import backend
from kernelbook.kernels import attention_mla as mla
from kernelbook.work import Work

DTYPE = torch.bfloat16
LATENT, ROPE, PAGE = 512, 64, 64
CASES = (  # heads, batch, context
    (16, 1, 4096),
    (16, 1, 32768),
    (16, 8, 8192),
    (16, 64, 8192),
    (128, 1, 8192),
    (128, 8, 8192),
    (128, 64, 4096),
)
PEERS = ("torch_absorbed", "copy")


def inputs(heads: int, batch: int, context: int):
    """q, cache [B, S, 576], int8 latent and scales, lengths, block table, room for the copy.

    The paged variant takes the cache as a pool, its pages in random order.
    """
    q, cache = _kv.randn(batch, heads, LATENT + ROPE), _kv.randn(batch, context, LATENT + ROPE)
    codes = mla.quantize_latent(cache[..., :LATENT])
    copied = torch.empty(cache.numel() // 2, device=cache.device, dtype=DTYPE)
    table = _kv.table_of(batch, context // PAGE)
    return q, cache, *codes, _kv.lengths_of(batch, context), table, copied


def latent(q, cache, codes, scale, lengths, pages, copied):
    return mla.attention_mla(q, cache[..., :LATENT], cache[..., LATENT:], lengths)


def paged(q, cache, codes, scale, lengths, pages, copied):
    pool = cache.view(-1, PAGE, LATENT + ROPE)
    return mla.attention_mla(q, pool[..., :LATENT], pool[..., LATENT:], lengths, block_table=pages)


def int8(q, cache, codes, scale, lengths, pages, copied):
    return mla.attention_mla(q, codes, cache[..., LATENT:], lengths, latent_scale=scale)


def dequantized(q, cache, codes, scale, lengths, pages, copied):
    """Not fused: the latent written out in bf16 first, by one kernel."""
    whole = torch.mul(codes, scale[..., None], out=torch.empty_like(codes, dtype=DTYPE))
    return mla.attention_mla(q, whole, cache[..., LATENT:], lengths)


def torch_absorbed(q, cache, codes, scale, lengths, pages, copied):
    """What PyTorch does with the absorbed form: two batched products and a softmax."""
    return torch.softmax(q @ cache.mT * mla.SCALE, dim=-1) @ cache[..., :LATENT]


def copy(q, cache, codes, scale, lengths, pages, copied):
    copied.copy_(cache.view(-1)[: copied.numel()])


CALLS = {
    "latent": latent,
    "paged": paged,
    "int8": int8,
    "dequantized": dequantized,
    "torch_absorbed": torch_absorbed,
    "copy": copy,
}


def latent64(q, cache, codes, scale, lengths, pages, copied):
    return _kv.attended_latent(q, cache[..., :LATENT], cache[..., LATENT:], lengths)


def paged64(q, cache, codes, scale, lengths, pages, copied):
    pool = cache.view(-1, PAGE, LATENT + ROPE)
    return _kv.attended_latent(q, pool[..., :LATENT], pool[..., LATENT:], lengths, table=pages)


def int8_64(q, cache, codes, scale, lengths, pages, copied):
    return _kv.attended_latent(q, codes, cache[..., LATENT:], lengths, scale)


EXPECTED = {
    "latent": latent64,
    "paged": paged64,
    "int8": int8_64,
    "dequantized": int8_64,
    "torch_absorbed": latent64,
}


def work_of(variant: str, heads: int, batch: int, context: int) -> Work:
    """Useful work; the copy moves as many bytes as the cache has, half read and half written."""
    if variant == "copy":
        half = batch * context * (LATENT + ROPE) * DTYPE.itemsize // 2
        return Work(0, half, half)
    quantized = variant in ("int8", "dequantized")
    page_size = PAGE if variant == "paged" else None
    work = mla.work([context] * batch, heads, DTYPE, quantized=quantized, page_size=page_size)
    wide = batch * context * LATENT * DTYPE.itemsize if variant == "dequantized" else 0
    return work + Work(0, wide, wide)


def measure(writer, heads: int, batch: int, context: int) -> None:
    least = work_of("int8", heads, batch, context).bytes
    make = partial(inputs, heads, batch, context)
    found = _rotated.side_by_side(CALLS, make, least, EXPECTED, PEERS)
    shape = {"batch": batch, "heads": heads, "context": context, "latent": LATENT, "rope": ROPE}
    for variant, time in found.items():
        work = work_of(variant, heads, batch, context)
        rates = f"{time.per_s(work.bytes) / 1e12:5.2f} TB/s {time.per_s(work.flops) / 1e12:5.0f} TF"
        print(
            f"{heads:3} heads {batch:3} x {context:6} {variant:15} {time.median_us:8.1f} us {rates}"
        )
        writer.add(
            op="attention_mla", variant=variant, peer=variant in PEERS, shape=shape, dtype=DTYPE,
            timing=time, work=work,
        )  # fmt: skip


def run(writer) -> None:
    """16 and 128 heads, short and long, one sequence and many."""
    if not backend.GPU:
        print("attention_mla: skipped, no GPU")
        return
    for case in CASES:
        measure(writer, *case)

"""Paged decode against the contiguous one, by page size, and against gathering first.

All read the same bytes: a pool's pages in random order, a sequence's tokens nowhere near each
other. `gather_cudnn` copies the pages together and calls cuDNN, what one does without a paged
kernel.
"""

from functools import partial

import torch
from torch.nn.attention import SDPBackend

from benchmarks.attention_decode import DTYPE, HEADS, inputs, sdpa, shape_of, side_by_side
from kernelbook import backend
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_paged as paged

PAGES = (8, 16, 32, 64, 128, 256)
GATHERED = 16
ROWS = ((1, 2048), (1, 8192), (1, 32768), (8, 8192), (64, 2048), (64, 8192))


def paged_inputs(shape: dict):
    """q, k, v and lengths; the memory of k and v again as pools; a table for each page size."""
    q, k, v = inputs(shape)
    batch, length = shape["batch"], shape["lengths"]
    lengths = torch.full((batch,), length, dtype=torch.int32, device="cuda")
    tables = {
        page: torch.randperm(batch * length // page, device="cuda").int().view(batch, -1)
        for page in PAGES
    }
    return q, k, v, lengths, tables


def pool(x, page: int) -> torch.Tensor:
    """The memory of [B, Hkv, S, D] taken as pages [N, Hkv, page, D]."""
    return x.view(-1, HEADS["kv_heads"], page, HEADS["head_dim"])


def contiguous(q, k, v, lengths, tables):
    return decode.attention_decode(q, k, v, lengths)


def on_pages(page: int, q, k, v, lengths, tables):
    return paged.attention_paged(q, pool(k, page), pool(v, page), tables[page], lengths)


def gathered(q, k, v, lengths, tables):
    k, v = (paged.gather(pool(x, GATHERED), tables[GATHERED]) for x in (k, v))
    return sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v)


def row(writer, batch: int, length: int) -> None:
    shape = shape_of(batch, length)
    calls = {"contiguous": contiguous, **{f"page_{p}": partial(on_pages, p) for p in PAGES}}
    calls["gather_cudnn"] = gathered
    moved = decode.work(**shape, dtype=DTYPE).bytes
    found = side_by_side(calls, lambda: paged_inputs(shape), moved)
    for variant, time in found.items():
        page = int(variant[5:]) if variant.startswith("page_") else 0
        sizes = {**shape, "lengths": [length] * batch}
        work = paged.work(**sizes, dtype=DTYPE, page_size=page) if page else decode.work(
            **sizes, dtype=DTYPE
        )  # fmt: skip
        ratio = found["contiguous"].median_us / time.median_us if "contiguous" in found else 0
        print(f"{batch:3} x {length:6} {variant:14} {time.median_us:8.1f} us, {ratio:.2f} of it")
        writer.add(
            op="attention_paged", variant=variant, peer=variant == "gather_cudnn",
            shape={**shape, "page_size": page}, dtype=DTYPE, timing=time, work=work,
        )  # fmt: skip
    torch.cuda.empty_cache()


def run(writer) -> None:
    """Page sizes 8 to 256 at several batches and contexts."""
    if not backend.GPU:
        print("attention_paged: skipped, no GPU")
        return
    for batch, length in ROWS:
        row(writer, batch, length)

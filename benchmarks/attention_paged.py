"""Paged decode against the contiguous one, by page size, and against gathering first.

All read the same bytes: a pool's pages in random order, a sequence's tokens nowhere near each
other. `gather_sdpa` copies the pages together and calls cuDNN, what one does without a paged
kernel; `sdpa_cudnn` has contiguous KV.
"""

from functools import partial

from benchmarks import _kv, _rotated
from kernelbook import backend
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_paged as paged
from kernelbook.work import Work

PAGES = (8, 16, 32, 64, 128, 256)
GATHERED = 16
CASES = ((1, 2048), (1, 8192), (1, 32768), (8, 8192), (64, 2048), (64, 8192))  # batch, context
PEERS = ("gather_sdpa", "sdpa_cudnn")


def inputs(batch: int, length: int):
    """q, k, v (pools, too), lengths, and a table for each page size."""
    tables = {page: _kv.table_of(batch, length // page) for page in PAGES}
    return *_kv.query_and_kv(batch, length), _kv.lengths_of(batch, length), tables


def contiguous(q, k, v, lengths, tables):
    return decode.attention_decode(q, k, v, lengths)


def on_pages(page: int, q, k, v, lengths, tables):
    pools = (_kv.pool(x, page) for x in (k, v))
    return paged.attention_paged(q, *pools, tables[page], lengths)


def gather_sdpa(q, k, v, lengths, tables):
    k, v = (paged.gather(_kv.pool(x, GATHERED), tables[GATHERED]) for x in (k, v))
    return _kv.cudnn(q, k, v)


def sdpa_cudnn(q, k, v, lengths, tables):
    return _kv.cudnn(q, k, v)


CALLS = {
    "contiguous": contiguous,
    **{f"page_{page}": partial(on_pages, page) for page in PAGES},
    "gather_sdpa": gather_sdpa,
    "sdpa_cudnn": sdpa_cudnn,
}


def contiguous64(q, k, v, lengths, tables):
    return _kv.attended(q, k, v, lengths)


def pages64(page: int, q, k, v, lengths, tables):
    return _kv.attended_pages(q, _kv.pool(k, page), _kv.pool(v, page), tables[page], lengths)


EXPECTED = {
    **{name: contiguous64 for name in ("contiguous", "sdpa_cudnn")},
    **{f"page_{page}": partial(pages64, page) for page in PAGES},
    "gather_sdpa": partial(pages64, GATHERED),
}


def page_size_of(variant: str) -> int:
    """0 for contiguous KV."""
    if variant == "gather_sdpa":
        return GATHERED
    return int(variant[5:]) if variant.startswith("page_") else 0


def work_of(variant: str, batch: int, length: int):
    """Useful work; gathering reads and writes the KV before it is read again."""
    sizes = _kv.sizes_of(batch, length)
    page = page_size_of(variant)
    work = decode.work(**sizes, dtype=_kv.DTYPE)
    if page:
        work = paged.work(**sizes, dtype=_kv.DTYPE, page_size=page)
    if variant == "gather_sdpa":
        copied = 2 * batch * length * _kv.HEADS["kv_heads"] * _kv.HEADS["head_dim"] * 2
        work += Work(0, copied, copied)
    return work


def measure(writer, batch: int, length: int) -> None:
    least = work_of("contiguous", batch, length).bytes
    make = partial(inputs, batch, length)
    found = _rotated.side_by_side(CALLS, make, least, EXPECTED, PEERS)
    for variant, time in found.items():
        ratio = found["contiguous"].median_us / time.median_us if "contiguous" in found else 0
        print(f"{batch:3} x {length:6} {variant:14} {time.median_us:8.1f} us, {ratio:.2f} of it")
        shape = {**_kv.shape_of(batch, length), "page_size": page_size_of(variant)}
        writer.add(
            op="attention_paged", variant=variant, peer=variant in PEERS, shape=shape,
            dtype=_kv.DTYPE, timing=time, work=work_of(variant, batch, length),
        )  # fmt: skip


def run(writer) -> None:
    """Page sizes 8 to 256 at several batches and contexts."""
    if not backend.GPU:
        print("attention_paged: skipped, no GPU")
        return
    for case in CASES:
        measure(writer, *case)

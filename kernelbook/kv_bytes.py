"""Layouts of a KV cache: bytes of a token, what else a kernel reads, and what pages waste.

Bytes are those of one layer. A token of grouped-query attention is a key and a value in each KV
head; a token of MLA is one latent row and one rotary key, for all heads. In 8 bits each row has a
scale of 4 bytes: a row of each head's key and value, or the latent row (its rotary key stays bf16).
"""

from collections.abc import Sequence
from typing import NamedTuple

from kernelbook import tables

ITEMSIZE = {"bf16": 2, "int8": 1, "fp8": 1}
SCALE = 4  # an fp32
INTEGER = 4  # a length, or a page's number
ANCESTORS = 8  # 64 bits a drafted token: which others it sees


def _itemsize(kv: str) -> int:
    if kv not in ITEMSIZE:
        raise ValueError(f"KV is kept as {', '.join(ITEMSIZE)}, got {kv!r}")
    return ITEMSIZE[kv]


def gqa_token_bytes(kv_heads: int = 8, head_dim: int = 128, kv: str = "bf16") -> int:
    """Keys and values of one token in one layer, scales included."""
    scale = 0 if kv == "bf16" else SCALE
    return 2 * kv_heads * (head_dim * _itemsize(kv) + scale)


def mla_token_bytes(latent: int = 512, rope: int = 64, kv: str = "bf16") -> int:
    """The latent row and the rotary key of one token in one layer, the row's scale included."""
    scale = 0 if kv == "bf16" else SCALE
    return latent * _itemsize(kv) + scale + rope * ITEMSIZE["bf16"]


def pages_of(length: int, page_size: int) -> int:
    """Pages that `length` tokens lie on."""
    if page_size < 1 or length < 0:
        raise ValueError(f"a page holds 1 token or more, of 0 or more, got {page_size}, {length}")
    return -(-length // page_size)


def metadata_bytes(lengths: Sequence[int], page_size: int = 0, tree_tokens: int = 0) -> int:
    """What a call reads besides q and the cache: lengths, page numbers, ancestors of drafts.

    page_size    0 for contiguous KV
    tree_tokens  drafted tokens of each sequence; they lie behind the context, in the same pages
    """
    pages = sum(pages_of(n + tree_tokens, page_size) for n in lengths) if page_size else 0
    return INTEGER * (len(lengths) + pages) + ANCESTORS * tree_tokens * len(lengths)


class Layout(NamedTuple):
    """How KV is kept and what that means for a kernel.

    contiguous   a sequence's tokens lie one after another
    page_size    tokens of a page, 0 where there are none
    kv           "bf16", "int8" or "fp8"
    bytes_per_token, metadata_bytes   see above
    gather, dequantize  "fused" into the attention kernel, or "" where there is nothing to do
    kind         "exact", "within tolerance" or "changes the model"
    """

    name: str
    contiguous: bool
    page_size: int
    kv: str
    bytes_per_token: int
    metadata_bytes: int
    gather: str
    dequantize: str
    kind: str


# name -> (model, page size, kv, drafted tokens)
KEPT = {
    "contiguous": ("gqa", 0, "bf16", 0),
    "paged_16": ("gqa", 16, "bf16", 0),
    "paged_256": ("gqa", 256, "bf16", 0),
    "int8": ("gqa", 0, "int8", 0),
    "fp8": ("gqa", 0, "fp8", 0),
    "int8_paged_16": ("gqa", 16, "int8", 0),
    "fp8_paged_16": ("gqa", 16, "fp8", 0),
    "shared_prefix": ("gqa", 0, "bf16", 0),
    "shared_pages": ("gqa", 64, "bf16", 0),
    "mla": ("mla", 0, "bf16", 0),
    "mla_paged_64": ("mla", 64, "bf16", 0),
    "mla_int8": ("mla", 0, "int8", 0),
    "mla_int8_paged_64": ("mla", 64, "int8", 0),
    "tree_paged_16": ("gqa", 16, "bf16", 16),
}


def layout(name: str, lengths: Sequence[int], kv_heads: int = 8, head_dim: int = 128) -> Layout:
    """The layout of that name for sequences of `lengths` tokens; its kind is against bf16 GQA."""
    model, page_size, kv, drafted = KEPT[name]
    tokens = mla_token_bytes(kv=kv) if model == "mla" else gqa_token_bytes(kv_heads, head_dim, kv)
    kind = "within tolerance" if name == "shared_prefix" else "exact"  # its parts are rounded
    return Layout(
        name=name,
        contiguous=not page_size,
        page_size=page_size,
        kv=kv,
        bytes_per_token=tokens,
        metadata_bytes=metadata_bytes(lengths, page_size, drafted),
        gather="fused" if page_size else "",
        dequantize="" if kv == "bf16" else "fused",
        kind="changes the model" if model == "mla" or kv != "bf16" else kind,
    )


def layouts(lengths: Sequence[int], kv_heads: int = 8, head_dim: int = 128) -> dict[str, Layout]:
    """name -> Layout of all that the course has kernels for."""
    return {name: layout(name, lengths, kv_heads, head_dim) for name in KEPT}


def layout_table(found: dict[str, Layout]) -> str:
    """A line for each layout."""
    header = ("layout", "page", "kept as", "bytes a token", "metadata", "fused", "kind")
    rows = []
    for one in found.values():
        fused = [word for word in ("gather", "dequantize") if getattr(one, word)]
        page = one.page_size or "contiguous"
        size = (one.bytes_per_token, one.metadata_bytes)
        rows.append((one.name, page, one.kv, *size, ", ".join(fused) or "-", one.kind))
    return tables.plain(header, rows)


class Waste(NamedTuple):
    """Bytes of one layer's cache on pages of one size.

    used, allocated, wasted   bytes of tokens, of whole pages, and their difference
    table_bytes               4 a page
    """

    page_size: int
    pages: int
    used_bytes: int
    allocated_bytes: int
    table_bytes: int

    @property
    def wasted_bytes(self) -> int:
        return self.allocated_bytes - self.used_bytes

    @property
    def percent(self) -> int:
        """Wasted of allocated, rounded to whole percents; 0 where nothing is allocated."""
        return round(100 * self.wasted_bytes / self.allocated_bytes) if self.allocated_bytes else 0


def page_waste(lengths: Sequence[int], page_size: int, token_bytes: int) -> Waste:
    """What sequences of `lengths` tokens waste: the unused ends of their last pages.

    With page_size = the most that a sequence may have, this is what reserving room for the longest
    wastes, one page a sequence.
    """
    pages = sum(pages_of(n, page_size) for n in lengths)
    allocated = pages * page_size * token_bytes
    return Waste(page_size, pages, sum(lengths) * token_bytes, allocated, INTEGER * pages)


def waste_table(lengths: Sequence[int], page_sizes: Sequence[int], token_bytes: int) -> str:
    """A line for each page size: pages, bytes wasted and their share, bytes of block tables."""
    found = [page_waste(lengths, size, token_bytes) for size in page_sizes]
    rows = [(w.page_size, w.pages, w.wasted_bytes, f"{w.percent}%", w.table_bytes) for w in found]
    return tables.plain(("page", "pages", "bytes wasted", "of all", "table bytes"), rows, left=0)

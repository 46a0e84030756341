"""Eight cells, (GQA, MLA) × (contiguous, paged) × (bf16, int8): inputs, attention, references."""

from types import SimpleNamespace
from typing import NamedTuple

from benchmarks import _kv
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_mla as mla
from kernelbook.kernels import attention_paged as paged
from kernelbook.kernels import attention_quantized as quantized
from kernelbook.kernels.kv_quantize import kv_quantize
from kernelbook.work import Work

LATENT, ROPE, PAGE = 512, 64, 64


class Cell(NamedTuple):
    """One combination of the three switches."""

    model: str
    layout: str
    kv: str

    @property
    def name(self) -> str:
        return "_".join(self)


CELLS = [
    Cell(model, layout, kv)
    for model in ("gqa", "mla")
    for layout in ("contiguous", "paged")
    for kv in ("bf16", "int8")
]


def inputs(batch: int, length: int) -> tuple[SimpleNamespace]:
    """One set: what any cell reads. Paged cells take the same memory as pages."""
    q, k, v = _kv.query_and_kv(batch, length)
    cache = _kv.randn(batch, length, LATENT + ROPE)
    given = {
        "q": q,
        "kv": {"bf16": (k, None, v, None), "int8": (*kv_quantize(k), *kv_quantize(v))},
        "mla_q": _kv.randn(batch, _kv.HEADS["query_heads"], LATENT + ROPE),
        "latent": {
            "bf16": (cache[..., :LATENT], None),
            "int8": mla.quantize_latent(cache[..., :LATENT]),
        },
        "rope": cache[..., LATENT:],
        "lengths": _kv.lengths_of(batch, length),
        "table": _kv.table_of(batch, length // PAGE),
    }
    return (SimpleNamespace(**given),)


def kv_of(cell: Cell, x) -> list:
    """k, its scales or None, v, its scales or None; as pools in a paged cell."""
    parts = x.kv[cell.kv]
    if cell.layout == "contiguous":
        return list(parts)
    return [part if part is None else _kv.pool(part, PAGE) for part in parts]


def latent_of(cell: Cell, x) -> list:
    """latent, rope, scale or None; as pools in a paged cell."""
    latent, scale = x.latent[cell.kv]
    parts = (latent, x.rope, scale)
    if cell.layout == "contiguous":
        return list(parts)
    return [part if part is None else part.reshape(-1, PAGE, *part.shape[2:]) for part in parts]


def attend(cell: Cell, x):
    """The cell's own launcher."""
    table = x.table if cell.layout == "paged" else None
    if cell.model == "mla":
        latent, rope, scale = latent_of(cell, x)
        options = {"latent_scale": scale, "block_table": table}
        return mla.attention_mla(x.mla_q, latent, rope, x.lengths, **options)
    k, k_scale, v, v_scale = kv_of(cell, x)
    if cell.kv == "int8":
        return quantized.attention_quantized(x.q, k, v, k_scale, v_scale, x.lengths, table)
    if table is not None:
        return paged.attention_paged(x.q, k, v, table, x.lengths)
    return decode.attention_decode(x.q, k, v, x.lengths)


def expected(cell: Cell, x):
    """The same in float64, sampled sequences."""
    table = x.table if cell.layout == "paged" else None
    if cell.model == "mla":
        latent, rope, scale = latent_of(cell, x)
        return _kv.attended_latent(x.mla_q, latent, rope, x.lengths, scale, table)
    k, k_scale, v, v_scale = kv_of(cell, x)
    if cell.kv == "int8":
        return _kv.attended_codes(x.q, k, k_scale, v, v_scale, x.lengths, table)
    if table is not None:
        return _kv.attended_pages(x.q, k, v, table, x.lengths)
    return _kv.attended(x.q, k, v, x.lengths)


def work_of(cell: Cell, batch: int, length: int) -> Work:
    lengths, page = [length] * batch, PAGE if cell.layout == "paged" else 0
    if cell.model == "mla":
        heads, eight = _kv.HEADS["query_heads"], cell.kv == "int8"
        return mla.work(lengths, heads, _kv.DTYPE, LATENT, ROPE, eight, page or None)
    sizes = {**_kv.sizes_of(batch, length), "dtype": _kv.DTYPE}
    if cell.kv == "int8":
        return quantized.work(**sizes, page_size=page)
    return paged.work(**sizes, page_size=page) if page else decode.work(**sizes)

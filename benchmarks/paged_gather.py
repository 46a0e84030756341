"""Does reading page numbers ahead matter? Chapter 05's own kernel, with and without; and a trace.

The same keys and values contiguous (one page a sequence) and on shuffled pages, each page number
asked for a tile ahead or when it is needed, with loads pipelined by the compiler (3 stages) or not
(1). Beside it the tuned kernel (stages: 0). Then what the profiler sees of int8 KV multiplied out
first, and fused. The chapter's kernel is taken from the chapter.
"""

from functools import partial
from pathlib import Path

import torch

from benchmarks import _kv, _rotated
from benchmarks._chapter import built_in
from kernelbook import backend, timeline
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_paged as paged
from kernelbook.kernels.attention_quantized import attention_quantized
from kernelbook.kernels.kv_quantize import kv_quantize

TRACE = Path(__file__).resolve().parents[1] / "data" / "traces" / "kv_layouts.json.gz"
CASES = ((1, 8192), (1, 32768), (16, 8192))
PAGES = (16, 64)
STAGES = (1, 3)
BLOCK = 64  # tokens of a tile of the chapter's kernel
TRACED = (16, 8192)


def inputs(batch: int, length: int):
    """q, k, v, lengths, and a table for each page size; one page of `length` is contiguous KV."""
    tables = {page: _kv.table_of(batch, length // page) for page in PAGES}
    tables[0] = torch.arange(batch, device=backend.DEVICE, dtype=torch.int32)[:, None]
    return *_kv.query_and_kv(batch, length), _kv.lengths_of(batch, length), tables


def on_pages(attend, page: int, options: dict, q, k, v, lengths, tables):
    """The chapter's kernel on the memory of k and v taken as pages."""
    pools = (_kv.pool(x, page or k.shape[2]) for x in (k, v))
    return attend(q, *pools, tables[page], lengths, **options)[0]


def tuned(page: int, q, k, v, lengths, tables):
    if not page:
        return decode.attention_decode(q, k, v, lengths)
    pools = (_kv.pool(x, page) for x in (k, v))
    return paged.attention_paged(q, *pools, tables[page], lengths)


def expected(page: int, q, k, v, lengths, tables):
    """Sampled sequences in float64."""
    if not page:
        return _kv.attended(q, k, v, lengths)
    pools = (_kv.pool(x, page) for x in (k, v))
    return _kv.attended_pages(q, *pools, tables[page], lengths)


def calls(attend, splits: int) -> dict:
    """(variant, page size, stages) -> call."""
    found = {("tuned", page, 0): partial(tuned, page) for page in (0, *PAGES)}
    for stages in STAGES:
        for variant, page in (
            ("contiguous", 0),
            *((v, p) for v in ("ahead", "on_time") for p in PAGES),
        ):
            options = {"splits": splits, "stages": stages, "ahead": variant != "on_time"}
            found[variant, page, stages] = partial(on_pages, attend, page, options)
    return found


def work_of(batch: int, length: int, page: int):
    sizes = _kv.sizes_of(batch, length)
    if not page:
        return decode.work(**sizes, dtype=_kv.DTYPE)
    return paged.work(**sizes, dtype=_kv.DTYPE, page_size=page)


def measure(writer, attend, batch: int, length: int) -> None:
    """All variants of one shape in turn, each checked first."""
    kv_heads, sms = _kv.HEADS["kv_heads"], backend.sms()
    splits = decode.choose_splits(batch, kv_heads, length, sms, BLOCK)
    able, right = calls(attend, splits), {p: partial(expected, p) for p in (0, *PAGES)}
    found = _rotated.side_by_side(
        able, partial(inputs, batch, length), work_of(batch, length, 0).bytes,
        {key: right[key[1]] for key in able},
    )  # fmt: skip
    for (variant, page, stages), time in found.items():
        name = f"{batch:3} x {length:6} {variant:10} page {page:3}, {stages} stages"
        print(f"{name} {time.median_us:8.1f} us", flush=True)
        shape = {**_kv.shape_of(batch, length), "page_size": page, "stages": stages}
        more = {"splits": splits} if stages else {}
        writer.add(
            op="paged_gather", variant=variant, shape=shape, dtype=_kv.DTYPE, timing=time,
            work=work_of(batch, length, page), **more,
        )  # fmt: skip


def dequantized_then_fused(batch: int, length: int):
    """A call: int8 KV multiplied out by PyTorch and attended to, then the fused kernel."""
    q, k, v = _kv.query_and_kv(batch, length)
    codes = [kv_quantize(x) for x in (k, v)]
    (k, k_scale), (v, v_scale) = codes

    def both():
        decode.attention_decode(q, *(x * scale[..., None].to(q.dtype) for x, scale in codes))
        attention_quantized(q, k, v, k_scale, v_scale)

    return both


def run(writer) -> None:
    """Three shapes, then the trace; without a GPU nothing."""
    if not backend.GPU:
        print("paged_gather: skipped, no GPU")
        return
    attend = built_in("05").attend
    for batch, length in CASES:
        measure(writer, attend, batch, length)
        torch.cuda.empty_cache()
    TRACE.parent.mkdir(parents=True, exist_ok=True)
    timeline.profile(dequantized_then_fused(*TRACED)).save(TRACE)

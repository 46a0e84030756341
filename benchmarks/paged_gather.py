"""Does reading page numbers ahead matter? Chapter 05's own kernel, with and without; and a trace.

The same keys and values contiguous (one page a sequence) and on shuffled pages, each page number
asked for a tile ahead or when it is needed, with loads pipelined by the compiler (3 stages) or not
(1). Then what the profiler sees of int8 KV multiplied out first, and fused.
"""

from functools import partial
from pathlib import Path

import torch

from benchmarks import _rotated
from benchmarks._chapter import built_in
from kernelbook import backend, timeline
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_paged as paged
from kernelbook.kernels.attention_quantized import attention_quantized
from kernelbook.kernels.kv_quantize import kv_quantize

TRACE = Path(__file__).resolve().parents[1] / "data" / "traces" / "kv_layouts.json.gz"
DTYPE = torch.bfloat16
HEADS = {"query_heads": 32, "kv_heads": 8, "head_dim": 128}
CASES = ((1, 8192), (1, 32768), (16, 8192))
PAGES = (16, 64)
STAGES = (1, 3)
TRACED = (16, 8192)


def inputs(batch: int, length: int):
    """q, the memory of k and v, lengths, and a table for each page size."""
    q = torch.randn(batch, HEADS["query_heads"], 1, HEADS["head_dim"], device="cuda", dtype=DTYPE)
    size = (batch * HEADS["kv_heads"] * length, HEADS["head_dim"])
    k, v = (torch.randn(size, device="cuda", dtype=DTYPE) for _ in range(2))
    lengths = torch.full((batch,), length, device="cuda", dtype=torch.int32)
    tables = {
        page: torch.randperm(batch * length // page, device="cuda").int().view(batch, -1)
        for page in PAGES
    }
    tables[length] = torch.arange(batch, device="cuda", dtype=torch.int32)[:, None]
    return q, k, v, lengths, tables


def on_pages(attend, page: int, options: dict, q, k, v, lengths, tables):
    """The chapter's kernel on the memory taken as pages [N, Hkv, page, D]."""
    pools = (x.view(-1, HEADS["kv_heads"], page, HEADS["head_dim"]) for x in (k, v))
    return attend(q, *pools, tables[page], lengths, **options)[0]


def calls(attend, length: int, splits: int) -> dict:
    """(variant, page size, stages) -> call; contiguous is one page of the whole length."""
    found = {}
    for stages in STAGES:
        options = {"splits": splits, "stages": stages}
        found["contiguous", 0, stages] = partial(on_pages, attend, length, options)
        for page in PAGES:
            for variant, ahead in (("ahead", True), ("on_time", False)):
                how = options | {"ahead": ahead}
                found[variant, page, stages] = partial(on_pages, attend, page, how)
    return found


def measure(writer, attend, batch: int, length: int) -> None:
    """All variants of one shape in turn."""
    splits = decode.choose_splits(batch, HEADS["kv_heads"], length, backend.sms(), 64)
    shape = {"batch": batch, "lengths": length, "queries": 1, **HEADS}
    moved = decode.work(**shape, dtype=DTYPE).bytes
    work = {0: decode.work(**{**shape, "lengths": [length] * batch}, dtype=DTYPE)}
    for page in PAGES:
        sizes = {**shape, "lengths": [length] * batch}
        work[page] = paged.work(**sizes, dtype=DTYPE, page_size=page)
    make = partial(inputs, batch, length)
    for (variant, page, stages), time in _rotated.side_by_side(
        calls(attend, length, splits), make, moved
    ).items():
        print(f"{batch:3} x {length:6} {variant:10} page {page:3} {stages} stages "
              f"{time.median_us:8.1f} us")  # fmt: skip
        writer.add(
            op="paged_gather", variant=variant, dtype=DTYPE, timing=time, work=work[page],
            shape={**shape, "page_size": page, "stages": stages}, splits=splits,
        )  # fmt: skip
    torch.cuda.empty_cache()


def trace() -> None:
    """Save the profiler's view: int8 multiplied out by PyTorch, then attended to; then fused."""
    batch, length = TRACED
    q = torch.randn(batch, HEADS["query_heads"], 1, HEADS["head_dim"], device="cuda", dtype=DTYPE)
    size = (batch, HEADS["kv_heads"], length, HEADS["head_dim"])
    (k, k_scale), (v, v_scale) = (
        kv_quantize(torch.randn(size, device="cuda", dtype=DTYPE)) for _ in range(2)
    )

    def both():
        wide = [x * scale[..., None].to(DTYPE) for x, scale in ((k, k_scale), (v, v_scale))]
        decode.attention_decode(q, *wide)
        attention_quantized(q, k, v, k_scale, v_scale)

    TRACE.parent.mkdir(parents=True, exist_ok=True)
    timeline.profile(both).save(TRACE)


def run(writer) -> None:
    """Three shapes, then the trace; without a GPU nothing."""
    if not backend.GPU:
        print("paged_gather: skipped, no GPU")
        return
    attend = built_in("05").attend
    for batch, length in CASES:
        measure(writer, attend, batch, length)
    trace()

"""Tile sizes of the plain tiled kernel: which tile is best depends on head dimension and mask.

The kernel loads through pointers here, as on any GPU from sm_80 on; a tile that does not fit, or
gives a wrong answer, is recorded as refused with the reason.
"""

from contextlib import contextmanager
from functools import partial

import torch

from kernelbook import backend, checks, timing
from kernelbook.kernels import attention_prefill as prefill

BATCH, HEADS = 2, 16
LENGTHS = (1024, 8192)
GRAPHED = 2048  # up to here the launch would take longer than the kernel
TILES = {
    "64x32": prefill.Config(64, 32, 4, 3),
    "64x64": prefill.Config(64, 64, 4, 3),
    "128x64": prefill.Config(128, 64, 4, 3),
    "128x64, 8 warps": prefill.Config(128, 64, 8, 3),
    "128x128, 8 warps": prefill.Config(128, 128, 8, 2),
}
CASES = (
    (64, False, torch.bfloat16),
    (64, True, torch.bfloat16),
    (128, False, torch.bfloat16),
    (128, True, torch.bfloat16),
    (128, False, torch.float16),
)


@contextmanager
def using(tile: prefill.Config):
    """The launcher with this tile, and without what only sm_90 has."""
    chosen = prefill.config
    prefill.config = lambda *_: tile
    try:
        with backend.assume(capability=(8, 0)):
            yield
    finally:
        prefill.config = chosen


def call(tile: prefill.Config, causal: bool):
    """Attention with this tile."""

    def launch(q, k, v):
        with using(tile):
            return prefill.attention_prefill(q, k, v, causal=causal)

    return launch


def inputs(length: int, head_dim: int, dtype, batch=BATCH, heads=HEADS):
    """Fresh q, k and v of unit variance."""
    shape = (batch, heads, length, head_dim)
    return tuple(torch.randn(shape, device="cuda").to(dtype) for _ in range(3))


def refusal(tile: prefill.Config, head_dim: int, causal: bool, dtype) -> str | None:
    """Why this tile is not measured: it needs too much, or errs; at an odd length."""
    q, k, v = inputs(333, head_dim, dtype, 1, 2)
    try:
        out = call(tile, causal)(q, k, v)
        checks.check(out, checks.reference64(prefill.reference, q, k, v, causal))
    except Exception as error:  # the compiler's own types differ between versions of Triton
        if "CUDA error" in str(error):
            raise
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"[:120]
    return None


def measure(writer, head_dim: int, causal: bool, dtype) -> None:
    """All tiles of one case in turn, at each length."""
    shape = {"batch": BATCH, "heads": HEADS, "head_dim": head_dim, "causal": causal}
    reasons = {name: refusal(tile, head_dim, causal, dtype) for name, tile in TILES.items()}
    for length in LENGTHS:
        own = 4 * BATCH * HEADS * length * head_dim * dtype.itemsize
        sets = timing.rotate(partial(inputs, length, head_dim, dtype), bytes_each=own)
        work = prefill.work(BATCH, HEADS, HEADS, length, length, head_dim, dtype, causal)
        fitting = {name: tile for name, tile in TILES.items() if reasons[name] is None}
        calls = {name: sets.bind(call(tile, causal)) for name, tile in fitting.items()}
        graph = length <= GRAPHED
        found = timing.side_by_side(calls, graph=graph, min_ms=10, warmup_ms=5, rounds=3)
        for name, tile in TILES.items():
            row = {"op": "prefill_tiles", "variant": name, "shape": shape | {"n": length}}
            row |= {"dtype": dtype, "tile": list(tile), "work": work}
            if name in found:
                writer.add(**row, timing=found[name])
            else:
                writer.add(**row, refused=reasons[name])
    rates = {name: f"{work.flops / t.median_us / 1e6:.0f}" for name, t in found.items()}
    print(f"hd {head_dim} causal {causal} {dtype}: TFLOP/s {rates}, refused {reasons}")


def run(writer) -> None:
    """Every case; without a GPU nothing."""
    if not backend.GPU:
        print("tiles: skipped, no GPU")
        return
    for case in CASES:
        measure(writer, *case)

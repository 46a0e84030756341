"""What the benchmarks of decode share: inputs, a float64 answer to compare with, times, rows.

A variant is a function of a whole set of inputs (q, k, v, ...), timed as `_rotated` does: only
where it agrees with float64, in graphs, on inputs rotated past the L2, in turn.
"""

from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import _rotated
from kernelbook import backend, checks
from kernelbook.kernels import _split_launch
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_prefill as prefill

DTYPE = torch.bfloat16
HEADS = {"query_heads": 32, "kv_heads": 8, "head_dim": 128}
PEERS = ("sdpa_cudnn", "sdpa_flash", "gather_cudnn")


def has_gpu(name: str) -> bool:
    """Whether there is something to measure on; says so where there is not."""
    if not backend.GPU:
        print(f"{name}: skipped, no GPU")
    return backend.GPU


def shape_of(batch: int, lengths: int, queries: int = 1, **more) -> dict:
    return {"batch": batch, "queries": queries, "lengths": lengths, **HEADS, **more}


def random(*size) -> torch.Tensor:
    return torch.randn(size, device=backend.DEVICE, dtype=DTYPE)


def inputs(shape: dict) -> tuple[torch.Tensor, ...]:
    """q [B, Hq, Sq, D], k and v [B, Hkv, S, D] of random numbers."""
    batch, head_dim = shape["batch"], shape["head_dim"]
    kv = (batch, shape["kv_heads"], shape["lengths"], head_dim)
    q = (batch, shape["query_heads"], shape["queries"], head_dim)
    return random(*q), random(*kv), random(*kv)


def small(shape: dict) -> dict:
    """The shape with few keys: the same kernel, as tiles depend on all but the length."""
    return {**shape, "lengths": max(256, shape["queries"])}


def work_of(shape: dict):
    """Useful work; `causal` counts the visible pairs only."""
    known = {"batch", "queries", "lengths", *HEADS, "causal"}
    sizes = {name: value for name, value in shape.items() if name in known}
    return decode.work(**sizes, dtype=DTYPE)


# --- splits --------------------------------------------------------------------------------


def split(q, k, v, **options):
    return decode.attention_decode(q, k, v, **options)


def sizes_of(shape: dict) -> tuple:
    """What the decode launcher chooses by."""
    sizes = (shape[name] for name in ("batch", "query_heads", "kv_heads", "head_dim", "queries"))
    return *sizes, DTYPE, DTYPE, device()


def tiles_of(shape: dict):
    """(tile of tokens, groups of programs) of the decode kernel for a shape."""
    rows = shape["query_heads"] // shape["kv_heads"] * shape["queries"]
    tile = decode.tile(*sizes_of(shape))
    return tile.block_n, shape["batch"] * shape["kv_heads"] * -(-rows // tile.block_m)


def chosen_splits(shape: dict, page: int = 0) -> int:
    """The number of splits that the decode launcher chooses by itself."""
    return decode.default_splits(*sizes_of(shape), shape["lengths"], page)


def programs(shape: dict, splits: int) -> int:
    return tiles_of(shape)[1] * splits


def prefill_programs(q, k, v, causal: bool = False) -> int:
    """Tiles of queries × heads: the independent pieces of work that the prefill kernel has."""
    batch, heads, queries, head_dim = q.shape
    tile = prefill.config(queries, k.shape[2], head_dim, q.dtype, backend.capability(q.device))
    rows = 128 if prefill.has_fast_twin(q, k, v, causal) else tile.block_m
    return batch * heads * -(-queries // rows)


def used_splits(shape: dict, splits: int) -> int:
    """Splits that have a tile of keys: more cannot be used."""
    return _split_launch.used_splits(shape["lengths"], splits, tiles_of(shape)[0])


def device() -> torch.device:
    return torch.device(backend.DEVICE)


def sms() -> int:
    return backend.sms(device())


# --- peers ---------------------------------------------------------------------------------


def sdpa(which, q, k, v, **options):
    with sdpa_kernel(which):  # named: by itself PyTorch picks FlashAttention-2 on Hopper
        return scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)


cudnn = partial(sdpa, SDPBackend.CUDNN_ATTENTION)
flash = partial(sdpa, SDPBackend.FLASH_ATTENTION)


# --- right before fast ---------------------------------------------------------------------


def answer64(q, k, v, causal: bool = False) -> torch.Tensor:
    """Attention in float64, one sequence and KV head at a time: long contexts fit in memory."""
    group = q.shape[1] // k.shape[1]
    sequences = []
    for b in range(len(q)):
        heads = [
            checks.reference64(
                prefill.reference,
                q[b : b + 1, h * group : (h + 1) * group],
                k[b : b + 1, h : h + 1],
                v[b : b + 1, h : h + 1],
                causal,
            )
            for h in range(k.shape[1])
        ]
        sequences.append(torch.cat(heads, dim=1))
    return torch.cat(sequences)


def expected(q, k, v, *_, causal: bool = False) -> torch.Tensor:
    """The sampled sequences, as `_rotated` compares them."""
    some = _rotated.sample(len(q))
    return answer64(q[some], k[some], v[some], causal)


# --- times and rows ------------------------------------------------------------------------


def in_turn(calls: dict, make_inputs, bytes_each: int, answers: dict, min_ms: float = 12) -> dict:
    """name -> Timing of the calls that are right; `answers` as `_rotated` takes them.

    A name is a variant, or a tuple that ends with one.
    """
    options = {"rounds": 5, "min_ms": min_ms, "warmup_ms": 4}
    loose = tuple(name for name in calls if name in PEERS or name[-1] in PEERS)
    return _rotated.side_by_side(calls, make_inputs, bytes_each, answers, loose, **options)


def add(writer, op: str, shape: dict, variant: str, found, work=None, **extra) -> None:
    """One row."""
    writer.add(
        op=op, variant=variant, peer=variant in PEERS, shape=shape, dtype=DTYPE, timing=found,
        work=work or work_of(shape), **extra,
    )  # fmt: skip


def measure(writer, op: str, shape: dict, calls: dict, extra: dict, causal=False, **more) -> dict:
    """Check, time and record the variants of one shape on contiguous KV.

    extra  variant -> fields of its own rows;  more  fields of all rows
    """
    answers = dict.fromkeys(calls, partial(expected, causal=causal))
    found = in_turn(calls, partial(inputs, shape), work_of(shape).bytes, answers)
    for variant, time in found.items():
        add(writer, op, shape, variant, time, **extra.get(variant, {}), **more)
    return found


def say(text: str) -> None:
    """One line of a benchmark's table, as soon as it is known."""
    print(f"  {text}", flush=True)


def table(title: str, lines: list[str]) -> None:
    """Lines under a title."""
    print(title)
    for line in lines:
        say(line)


def times_in_words(found: dict) -> str:
    return ", ".join(f"{name} {time.median_us:.1f}" for name, time in found.items()) + " us"

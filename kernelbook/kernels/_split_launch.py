"""How decode kernels are launched: tiles, number of splits, memory for partial results, checks."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from kernelbook import backend
from kernelbook.kernels._attention_inputs import DTYPES, check_dtypes, check_scale, check_shapes
from kernelbook.kernels._split_kv import merge_kernel, split_kv_kernel
from kernelbook.kernels._splits import splits_for
from kernelbook.work import Work

MERGES = ("last", "kernel")
COUNTERS = 8192  # groups that one launch may have where the last arriver merges
MERGED_AT_ONCE = 8192  # fp32 elements of partial results that a merging program holds


def cdiv(a: int, b: int) -> int:
    """a / b rounded up; Triton's takes 10 µs of a launch each time."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


class Config(NamedTuple):
    """Tile of query rows, tile of tokens, and how the program is run."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


class Cache(NamedTuple):
    """KV as the kernel sees it: [blocks, Hkv, tokens of a block, D], a block being a sequence's
    whole capacity or a page; scales [blocks, Hkv, tokens] or None; table [B, pages] or None."""

    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    table: torch.Tensor | None = None

    @property
    def page(self) -> int:
        return 0 if self.table is None else self.k.shape[2]

    @property
    def capacity(self) -> int:
        """Tokens that a sequence may have."""
        return self.k.shape[2] * (1 if self.table is None else self.table.shape[1])


@lru_cache(maxsize=4096)
def config(rows: int, head_dim: int, q_dtype, kv_dtype, capability, few: bool = False) -> Config:
    """Tiles for the rows of a group: K and V tiles of 32 KiB, as deep as shared memory goes.

    few  fewer groups than SMs, so that each is split, or small pages: tiles of 16 KiB
    """
    width = max(16, power_of_two(head_dim))
    block_m = max(16, min(64, power_of_two(rows)))
    if q_dtype == torch.float32 or capability < (8, 0):  # no tensor cores: registers limit
        return Config(min(block_m, 16), 32 if width <= 128 else 16, 4, 2)
    if kv_dtype.itemsize == 1:
        if width != head_dim or width > 128:  # more registers for each token
            return Config(block_m, 64, 4, 3)
        return Config(block_m, 128, 4, 3 if kv_dtype.is_floating_point else 4)
    large = capability in ((8, 0), (9, 0), (10, 0))  # 163 to 227 KiB of shared memory; else 99
    row = width * kv_dtype.itemsize  # bytes
    if large and few:
        return Config(block_m, max(32, min(128, 16384 // row)), 4, 4)
    block_n = 128 if row <= 256 else 64
    if not large and row >= 256:
        block_n //= 2
    return Config(block_m, block_n, 4, 3 if large else 2)


def tile(
    batch, query_heads, kv_heads, head_dim, queries, q_dtype, kv_dtype, device, page=0
) -> Config:  # fmt: skip
    """The tiles that a launch takes for these sizes; pages below 128 tokens want small tiles."""
    rows = query_heads // kv_heads * queries
    few = 0 < page < 128 or batch * kv_heads * cdiv(rows, 64) < backend.sms(device)
    return config(rows, head_dim, q_dtype, kv_dtype, backend.capability(device), few)


def choose_splits(batch: int, kv_heads: int, max_len: int, sms: int, tile: int = 128) -> int:
    """Splits for each of batch × kv_heads groups: whole tiles, none of them empty.

    `sms` are places for programs: as many as SMs, or a multiple where several share an SM.
    """
    splits = splits_for(max(1, batch * kv_heads), max(1, cdiv(max_len, tile)), sms)
    return used_splits(max_len, splits, tile)


def default_splits(
    batch, query_heads, kv_heads, head_dim, queries, q_dtype, kv_dtype, device, capacity, page=0
) -> int:
    """Splits that a launch takes for these sizes where its caller names none."""
    chosen = tile(
        batch, query_heads, kv_heads, head_dim, queries, q_dtype, kv_dtype, device, page
    )  # fmt: skip
    m_tiles = cdiv(query_heads // kv_heads * queries, chosen.block_m)
    # A program waits for the numbers of small pages, or converts codes: a second one on the same SM
    # fills the gaps.
    shared = 0 < page < chosen.block_n or kv_dtype.itemsize == 1
    places = backend.sms(device) * (2 if shared else 1)
    return choose_splits(batch * m_tiles, kv_heads, capacity, places, chosen.block_n)


def used_splits(length: int, splits: int, tile: int) -> int:
    """Splits that have a tile, of a sequence of `length` tokens: what `_split_kv.tiles_of` does."""
    tiles = max(1, cdiv(length, tile))
    return cdiv(tiles, cdiv(tiles, splits))


def merge_work(
    kv_heads: int, rows: int, lengths, head_dim: int, splits: int, tile: int, merge: str = "kernel"
) -> Work:
    """The price of splitting: partial results written and read, fp32, and what counts arrivals.

    rows are the query rows of a group; sequences of `lengths` with one split in use cost nothing.
    """
    used = [used_splits(length, splits, tile) for length in lengths]
    partial = sum(u for u in used if u > 1) * kv_heads * rows * (head_dim + 1) * 4
    if merge == "last":  # a counter is read, raised and written again
        partial += sum(u > 1 for u in used) * kv_heads * 4
    return Work(0, partial, partial)


def host_values(x) -> np.ndarray | None:
    """The numbers of a list or CPU tensor, None where only the device knows them.

    Unseen by the meter, for which every tensor is the device's: on a GPU nothing is read here.
    """
    if not isinstance(x, torch.Tensor):
        return np.asarray(x)
    with torch._C.DisableTorchFunction():
        return x.numpy() if x.device.type == "cpu" else None


def device_lengths(lengths, batch: int, capacity: int, queries: int, causal: bool, device):
    """Lengths as int32 on `device`, checked where the host knows them; None stays None."""
    if lengths is None:
        if capacity == 0:
            raise ValueError("k and v hold no token")
        return None
    values = host_values(lengths)
    if values is None and lengths.dtype != torch.int32:
        raise ValueError(f"lengths on a GPU must be int32, got {lengths.dtype}")
    shape = tuple(lengths.shape if values is None else values.shape)
    if shape != (batch,):
        raise ValueError(f"lengths must hold one number for each of {batch} sequences, got {shape}")
    if values is not None:
        least = queries if causal else 1
        if values.dtype.kind not in "iu" or values.min() < least or values.max() > capacity:
            raise ValueError(
                f"lengths must be integers from {least} to {capacity}, got {values.tolist()}"
            )
    if isinstance(lengths, torch.Tensor) and lengths.dtype == torch.int32:
        if lengths.device == device:
            return lengths.contiguous()
        if values is None:
            raise ValueError(f"lengths are on {lengths.device}, q on {device}")
    return torch.tensor(values, dtype=torch.int32, device=device)


def check(q, cache: Cache, scale: float, merge: str, splits) -> None:
    """Raise ValueError for shapes, dtypes, devices or options that do not fit."""
    check_shapes(q, cache.k, cache.v, pool=cache.table is not None)
    if cache.k_scale is None:
        check_dtypes(q, cache.k, cache.v)
    elif q.dtype not in DTYPES:
        raise ValueError(f"q must be fp16, bf16 or fp32, got {q.dtype}")
    check_scale(scale)
    if merge not in MERGES:
        raise ValueError(f'merge must be "last" or "kernel", got {merge!r}')
    if splits is not None and not 1 <= splits <= 512:
        raise ValueError(f"splits must be from 1 to 512, got {splits}")
    backend.same_device(q=q, **cache._asdict())


_zeros: dict = {}  # device -> (zeros made outside of any capture, how many are taken)
_counters: dict = {}  # (device, stream) -> counters


def counters(device: torch.device) -> torch.Tensor:
    """COUNTERS zeros; each launch leaves zeros behind, so launches on one stream share them.

    A tensor made while a graph is captured is not filled until the graph runs. So zeros are set
    aside beforehand, for 64 streams; a capture that finds none fills its own at each replay.
    """
    if device.type == "cpu":  # fresh ones: a launch that an error ended leaves no zeros
        return torch.from_numpy(np.zeros(COUNTERS, np.int32))
    key = (device, torch.cuda.current_stream(device).cuda_stream)
    if key in _counters:
        return _counters[key]
    capturing = torch.cuda.is_current_stream_capturing()
    if device not in _zeros and not capturing:
        pool = torch.zeros(64 * COUNTERS, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)  # once, so that other streams find them filled
        _zeros[device] = list(pool.split(COUNTERS))
    if _zeros.get(device):
        _counters[key] = _zeros[device].pop()
        return _counters[key]
    fresh = torch.zeros(COUNTERS, dtype=torch.int32, device=device)
    if not capturing:
        _counters[key] = fresh
    return fresh


def has_pairs(q, cache: Cache) -> bool:
    """Whether one-byte KV can be read two codes at a time, which takes a GPU's instructions."""
    k, v = cache.k, cache.v
    if not q.is_cuda or k.element_size() != 1 or q.dtype == torch.float32:
        return False
    least = (8, 9) if k.dtype.is_floating_point else (8, 0)
    width = q.shape[-1]
    whole = width >= 32 and width == power_of_two(width)
    even = all(x.stride(3) == 1 and not any(s % 2 for s in x.stride()[:3]) for x in (k, v))
    aligned = not (k.data_ptr() | v.data_ptr()) % 2
    return whole and even and aligned and backend.capability(q.device) >= least


def has_dependent_launch(q) -> bool:
    """Whether a kernel may start while the one before it ends (programmatic dependent launch)."""
    return q.is_cuda and backend.capability(q.device) >= (9, 0)


def best_merge(device: torch.device) -> str:
    """A second kernel where it can start before the first one ends, which saves its launch."""
    return "kernel" if backend.capability(device) >= (9, 0) else "last"


def launch(
    q, cache: Cache, lengths, causal: bool, scale, return_lse: bool,
    splits: int | None, merge: str | None, programs: int | None = None,
):  # fmt: skip
    """Check, choose, allocate, run; `programs` makes it persistent. Returns out or (out, lse)."""
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    merge = best_merge(q.device) if merge is None else merge
    check(q, cache, scale, merge, splits)
    batch, query_heads, queries, head_dim = q.shape
    kv_heads, device = cache.k.shape[1], q.device
    capacity = cache.capacity
    out = torch.empty(q.shape, dtype=q.dtype, device=device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=device) if return_lse else None
    if out.numel() == 0:
        return (out, lse) if return_lse else out
    lengths = device_lengths(lengths, batch, capacity, queries, causal, device)

    rows = query_heads // kv_heads * queries
    sizes = (batch, query_heads, kv_heads, head_dim, queries, q.dtype, cache.k.dtype, device)
    chosen = tile(*sizes, cache.page)
    m_tiles = cdiv(rows, chosen.block_m)
    groups = batch * kv_heads * m_tiles
    if splits is None:
        splits = default_splits(*sizes, capacity, cache.page)
    if splits > 1 and merge == "last" and groups > COUNTERS:
        raise ValueError(f"merge='last' takes up to {COUNTERS} groups, got {groups}: use 'kernel'")

    width = max(16, power_of_two(head_dim))
    partial = partial_lse = arrivals = None
    last = splits > 1 and merge == "last"
    if splits > 1:
        partial_lse = torch.empty(
            batch * kv_heads, splits, rows, dtype=torch.float32, device=device
        )
        partial = partial_lse.new_empty(*partial_lse.shape, head_dim)
        arrivals = counters(device) if last else None
    chunk = min(power_of_two(splits), MERGED_AT_ONCE // width)
    together = max(1, min(chosen.block_m, power_of_two(rows), MERGED_AT_ONCE // (chunk * width)))
    dependent = {"PDL": True, "launch_pdl": True} if has_dependent_launch(q) else {"PDL": False}
    items = groups * splits
    split_kv_kernel[(min(items, programs or items),)](
        q, cache.k, cache.v, cache.k_scale, cache.v_scale, cache.table, lengths,
        out, lse, partial, partial_lse, arrivals,
        capacity, kv_heads, queries, rows, splits, m_tiles, items, scale * math.log2(math.e),
        q.stride(), cache.k.stride(), cache.v.stride(),
        *((0, 0, 0) if x is None else x.stride() for x in (cache.k_scale, cache.v_scale)),
        (0, 0) if cache.table is None else cache.table.stride(),
        HEAD_DIM=head_dim, WIDTH=width, BLOCK_M=chosen.block_m, BLOCK_N=chosen.block_n,
        PAGE=cache.page, CAUSAL=causal, LAST=last,
        SPLIT=splits > 1, ROWS=together if last else 1, CHUNK=chunk if last else 1,
        PAIRS=has_pairs(q, cache), PERSISTENT=programs is not None,
        num_warps=chosen.num_warps, num_stages=chosen.num_stages, **dependent,
    )  # fmt: skip
    if splits > 1 and merge == "kernel":
        merge_kernel[(batch * kv_heads * rows,)](
            partial, partial_lse, out, lse, lengths, capacity, kv_heads, rows, splits,
            HEAD_DIM=head_dim, WIDTH=width, BLOCK_N=chosen.block_n,
            CHUNK=chunk, num_warps=4, **dependent,
        )  # fmt: skip
    return (out, lse) if return_lse else out

"""Split-KV decode beside what a user would pick: cuDNN, FlashAttention-2, FlexAttention.

Graph to graph: twenty calls captured, inputs rotated past the L2, the same for each. Then the
number of splits, persistent programs at several waves, and the prefill kernel and this one at query
lengths from 1 to 512: where each of them loses.
"""

from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from kernelbook import backend, timing
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels.attention_prefill import attention_prefill

DTYPE = torch.bfloat16
HEADS = {"query_heads": 32, "kv_heads": 8, "head_dim": 128}
SHORT = ((1, 1024), (1, 2048), (1, 8192), (1, 32768), (8, 2048), (8, 8192), (64, 2048))
LONG = ((1, 131072), (64, 8192), (8, 131072), (64, 32768))
FLEX = ((1, 2048), (1, 8192), (1, 32768), (8, 8192), (64, 2048))  # compiles for seconds each
PEERS = ("cudnn", "flash2", "flex")
SPLITS = (1, 2, 4, 8, 16, 32, 64)
WAVES = (8, 18, 50)  # batches: 64, 144 and 400 programs on 132 SMs
QUERIES = (1, 4, 16, 64, 128, 256, 512)


def shape_of(batch: int, length: int, queries: int = 1) -> dict:
    return {"batch": batch, "lengths": length, "queries": queries, **HEADS}


def inputs(shape: dict):
    """q, k, v of random numbers."""
    size = (shape["batch"], shape["kv_heads"], shape["lengths"], shape["head_dim"])
    q_size = (shape["batch"], shape["query_heads"], shape["queries"], shape["head_dim"])
    return tuple(torch.randn(s, device="cuda", dtype=DTYPE) for s in (q_size, size, size))


def split(q, k, v, **options):
    return decode.attention_decode(q, k, v, **options)


def sdpa(which, q, k, v):
    with sdpa_kernel(which):  # named: by itself PyTorch picks FlashAttention-2 here
        return scaled_dot_product_attention(q, k, v, enable_gqa=True)


def flex():
    """FlexAttention compiled for one shape: its decoding kernel, where queries are few."""
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, enable_gqa=True)


OWN = {
    "split_kv": partial(split, merge="last"),
    "split_kv_merge_kernel": partial(split, merge="kernel"),
    "split_kv_persistent": partial(split, persistent=True),
}
VENDOR = {
    "cudnn": partial(sdpa, SDPBackend.CUDNN_ATTENTION),
    "flash2": partial(sdpa, SDPBackend.FLASH_ATTENTION),
}


def side_by_side(calls: dict, make_inputs, bytes_each: int) -> dict:
    """Timings in graphs, inputs rotated; what cannot run here is named and left out."""
    calls = running(calls, *make_inputs())
    sets = timing.rotate(make_inputs, bytes_each=bytes_each)
    bound = {name: sets.bind(call) for name, call in calls.items()}
    few = {"calls": 4} if bytes_each > 2**28 else {}
    return timing.side_by_side(bound, graph=True, min_ms=25, warmup_ms=8, **few)


def running(calls: dict, *arguments) -> dict:
    """The variants that work on these inputs; the others are named."""
    able = {}
    for name, call in calls.items():
        try:
            call(*arguments)
            able[name] = call
        except Exception as error:
            print(f"{name} skipped, {type(error).__name__}: {str(error).splitlines()[0][:100]}")
    return able


def record(writer, op: str, shape: dict, found: dict, **extra) -> None:
    work = decode.work(**shape, dtype=DTYPE)
    for variant, time in found.items():
        print(
            f"{op} {shape['batch']:3} x {shape['lengths']:6} x {shape['queries']:3} {variant:22} "
            f"{time.median_us:8.1f} us {time.per_s(work.bytes) / 1e12:5.2f} TB/s"
        )
        peer = variant in PEERS
        writer.add(
            op=op, variant=variant, peer=peer, shape=shape, dtype=DTYPE, timing=time, work=work,
            **({} if peer else extra),
        )  # fmt: skip


def measure(writer, op: str, shape: dict, calls: dict, **extra) -> None:
    moved = decode.work(**shape, dtype=DTYPE).bytes
    record(writer, op, shape, side_by_side(calls, lambda: inputs(shape), moved), **extra)
    torch.cuda.empty_cache()


def programs(shape: dict, splits: int) -> int:
    return shape["batch"] * shape["kv_heads"] * splits


def contexts(writer) -> None:
    """Batch × context against the peers."""
    for batch, length in (*SHORT, *LONG):
        flexible = {"flex": flex()} if (batch, length) in FLEX else {}
        shape = shape_of(batch, length)
        splits = decode.choose_splits(batch, shape["kv_heads"], length, backend.sms())
        extra = {"splits": splits, "programs": programs(shape, splits)}
        measure(writer, "attention_decode", shape, OWN | VENDOR | flexible, **extra)


def splits(writer) -> None:
    """How many splits: too few leave SMs idle, too many have more to merge."""
    for batch, length in ((1, 2048), (1, 8192), (1, 32768), (8, 8192)):
        calls = {f"splits_{n}": partial(split, splits=n) for n in SPLITS}
        measure(writer, "attention_decode_splits", shape_of(batch, length), calls)


def waves(writer) -> None:
    """Plain launches against persistent programs where waves do not come out even."""
    for batch in WAVES:
        shape = shape_of(batch, 4096)
        calls = {
            "plain": partial(split, splits=1),
            "persistent": partial(split, splits=1, persistent=True),
            "split": split,
        }
        extra = {"programs": programs(shape, 1), "sms": backend.sms()}
        measure(writer, "attention_decode_waves", shape, calls, **extra)


def queries(writer) -> None:
    """The prefill kernel and this one as queries grow: a decode step, a draft, a prompt's chunk."""
    for number in QUERIES:
        calls = {"prefill_kernel": attention_prefill, "split_kv": split}
        calls |= {"cudnn": VENDOR["cudnn"]}
        measure(writer, "attention_decode_queries", shape_of(1, 8192, number), calls)


def run(writer) -> None:
    """Contexts 1k to 128k, batches 1 to 64; splits; waves; query lengths."""
    if not backend.GPU:
        print("attention_decode: skipped, no GPU")
        return
    for part in (contexts, splits, waves, queries):
        part(writer)

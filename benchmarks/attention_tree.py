"""Tree verification beside one-token decode, its floor, and SDPA with a dense mask.

Graph to graph, inputs rotated past the L2. The context is read once however many tokens are
drafted, so up to 64 rows (4 heads a group × 16 tokens) it should cost what one token costs.

The dense mask is made beforehand, in the form that SDPA adds to scores. Given grouped heads and a
mask, PyTorch falls back to separate kernels; `sdpa_mask_packed` spares it that by taking a group's
heads as further queries.
"""

from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import _kv, _rotated
from kernelbook import backend
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_tree as tree
from kernelbook.kernels.attention_paged import gather

DTYPE = torch.bfloat16
QUERY_HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 64
CONTEXTS = ((1, 2048), (1, 8192), (1, 32768), (8, 8192))  # batch, committed tokens
TOKENS = (4, 16, 64)
PEERS = ("sdpa_mask", "sdpa_mask_packed", "sdpa_mask_cudnn")


def binary_tree(tokens: int) -> torch.Tensor:
    return tree.pack_ancestors([(i - 1) // 2 if i else -1 for i in range(tokens)])


def inputs(batch: int, context: int, tokens: int):
    """q, k, v with room for 64 tree tokens, ancestors, lengths, block table, dense mask.

    The paged variant takes k and v as pools, their pages in random order. The mask is 0 or -inf,
    bf16 [B, 1, group × tokens, capacity], for each head of a group the same.
    """
    capacity = context + tree.MOST_TOKENS
    q = _kv.randn(batch, QUERY_HEADS, tokens, HEAD_DIM)
    k, v = (_kv.randn(batch, KV_HEADS, capacity, HEAD_DIM) for _ in range(2))
    ancestors = binary_tree(tokens).to(q.device).expand(batch, -1)
    lengths = _kv.lengths_of(batch, context)
    seen = tree.dense_mask(ancestors, lengths, capacity)[:, None]
    mask = torch.zeros_like(seen, dtype=DTYPE).masked_fill(~seen, float("-inf"))
    mask = mask.repeat(1, 1, QUERY_HEADS // KV_HEADS, 1)
    return q, k, v, ancestors, lengths, _kv.table_of(batch, capacity // PAGE), mask


def drafted(q, k, v, ancestors, lengths, pages, mask):
    return tree.attention_tree(q, k, v, ancestors, lengths)


def paged(q, k, v, ancestors, lengths, pages, mask):
    k, v = (_kv.pool(x, PAGE) for x in (k, v))
    return tree.attention_tree(q, k, v, ancestors, lengths, block_table=pages)


def one_token(q, k, v, ancestors, lengths, pages, mask):
    return decode.attention_decode(q[:, :, :1], k, v, lengths)


def sdpa_mask(q, k, v, ancestors, lengths, pages, mask):
    """Whatever PyTorch picks when it is given a mask."""
    mask = mask[:, :, : q.shape[2]]
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def sdpa_mask_packed(q, k, v, ancestors, lengths, pages, mask):
    """The heads of a group as further queries, so that a fused kernel takes them."""
    packed = q.view(len(q), KV_HEADS, -1, HEAD_DIM)
    return scaled_dot_product_attention(packed, k, v, attn_mask=mask).view(q.shape)


def sdpa_mask_cudnn(q, k, v, ancestors, lengths, pages, mask):
    return _kv.cudnn(q, k, v, mask[:, :, : q.shape[2]])


CALLS = {
    "tree": drafted,
    "paged": paged,
    "one_token": one_token,
    "sdpa_mask": sdpa_mask,
    "sdpa_mask_packed": sdpa_mask_packed,
    "sdpa_mask_cudnn": sdpa_mask_cudnn,
}


def tree64(q, k, v, ancestors, lengths, pages, mask):
    some = _rotated.sample(len(q))
    doubles = (x[some].double() for x in (q, k, v))
    return tree.reference(*doubles, ancestors[some], lengths[some])


def paged64(q, k, v, ancestors, lengths, pages, mask):
    some = _rotated.sample(len(q))
    k, v = (gather(_kv.pool(x, PAGE), pages[some]).double() for x in (k, v))
    return tree.reference(q[some].double(), k, v, ancestors[some], lengths[some])


def one64(q, k, v, ancestors, lengths, pages, mask):
    context = int(lengths[0])
    return _kv.attended(q[:, :, :1], k[:, :, :context], v[:, :, :context], lengths)


EXPECTED = {"paged": paged64, "one_token": one64}
EXPECTED |= {name: tree64 for name in CALLS if name not in EXPECTED}


def measure(writer, batch: int, context: int, tokens: int) -> None:
    heads = {"query_heads": QUERY_HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    shape = {"batch": batch, "context": context, "tokens": tokens, **heads}
    lengths = [context] * batch
    one = decode.work(batch, QUERY_HEADS, KV_HEADS, lengths, HEAD_DIM, DTYPE)
    pairs = sum((bits & (2**64 - 1)).bit_count() for bits in binary_tree(tokens).tolist())
    make = partial(inputs, batch, context, tokens)
    found = _rotated.side_by_side(CALLS, make, one.bytes, EXPECTED, PEERS)
    for variant, time in found.items():
        page_size = PAGE if variant == "paged" else None
        work = one if variant == "one_token" else tree.work(
            lengths, QUERY_HEADS, KV_HEADS, tokens, HEAD_DIM, DTYPE, pairs, page_size
        )  # fmt: skip
        times = time.median_us / found["one_token"].median_us if "one_token" in found else 0
        print(
            f"{batch:2} x {context:6} + {tokens:2} {variant:16} {time.median_us:8.1f} us "
            f"{time.per_s(work.bytes) / 1e12:5.2f} TB/s {times:5.2f} x one token"
        )
        writer.add(
            op="attention_tree", variant=variant, peer=variant in PEERS, shape=shape, dtype=DTYPE,
            timing=time, work=work,
        )  # fmt: skip


def run(writer) -> None:
    """Contexts from 2k to 32k, trees of 4, 16 and 64 tokens."""
    if not backend.GPU:
        print("attention_tree: skipped, no GPU")
        return
    for batch, context in CONTEXTS:
        for tokens in TOKENS:
            measure(writer, batch, context, tokens)

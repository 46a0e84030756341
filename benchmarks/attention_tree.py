"""Tree verification beside one-token decode, its floor, and SDPA with a dense mask.

Graph to graph, inputs rotated past the L2. The context is read once however many tokens are
drafted, so up to 64 rows (4 heads a group × 16 tokens) it should cost what one token costs.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import _rotated
from kernelbook import backend
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_tree as tree

DTYPE = torch.bfloat16
QUERY_HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 64
CONTEXTS = ((1, 2048), (1, 8192), (1, 32768), (8, 8192))  # batch, committed tokens
TOKENS = (4, 16, 64)
PEERS = ("sdpa_mask", "sdpa_mask_cudnn")


def binary_tree(tokens: int) -> torch.Tensor:
    return tree.pack_ancestors([(i - 1) // 2 if i else -1 for i in range(tokens)])


def inputs(batch: int, context: int, tokens: int):
    """q, k, v with room for 64 tree tokens, ancestors, lengths, block table, dense mask.

    The paged variant takes k and v as pools, their pages in random order.
    """
    capacity = context + 64
    q = torch.randn(batch, QUERY_HEADS, tokens, HEAD_DIM, device="cuda", dtype=DTYPE)
    size = (batch, KV_HEADS, capacity, HEAD_DIM)
    k, v = (torch.randn(size, device="cuda", dtype=DTYPE) for _ in range(2))
    ancestors = binary_tree(tokens).cuda().expand(batch, -1)
    lengths = torch.full((batch,), context, device="cuda", dtype=torch.int32)
    pages = torch.randperm(batch * capacity // PAGE, device="cuda").int().reshape(batch, -1)
    mask = tree.dense_mask(ancestors, lengths, context + tokens)[:, None]
    return q, k, v, ancestors, lengths, pages, mask


def drafted(q, k, v, ancestors, lengths, pages, mask):
    return tree.attention_tree(q, k, v, ancestors, lengths)


def paged(q, k, v, ancestors, lengths, pages, mask):
    k, v = (x.view(-1, KV_HEADS, PAGE, HEAD_DIM) for x in (k, v))
    return tree.attention_tree(q, k, v, ancestors, lengths, block_table=pages)


def one_token(q, k, v, ancestors, lengths, pages, mask):
    return decode.attention_decode(q[:, :, :1], k, v, lengths)


def sdpa_mask(q, k, v, ancestors, lengths, pages, mask):
    """Whatever PyTorch picks when it is given a mask."""
    k, v = (x[:, :, : mask.shape[-1]] for x in (k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def sdpa_mask_cudnn(*inputs):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return sdpa_mask(*inputs)


CALLS = {
    "tree": drafted,
    "paged": paged,
    "one_token": one_token,
    "sdpa_mask": sdpa_mask,
    "sdpa_mask_cudnn": sdpa_mask_cudnn,
}


def measure(writer, batch: int, context: int, tokens: int) -> None:
    heads = {"query_heads": QUERY_HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    shape = {"batch": batch, "context": context, "tokens": tokens, **heads}
    lengths = [context] * batch
    one = decode.work(batch, QUERY_HEADS, KV_HEADS, lengths, HEAD_DIM, DTYPE)
    pairs = sum((bits & (2**64 - 1)).bit_count() for bits in binary_tree(tokens).tolist())
    found = _rotated.side_by_side(CALLS, lambda: inputs(batch, context, tokens), one.bytes)
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

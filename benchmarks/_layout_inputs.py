"""One set of inputs for all layouts of a cache: 16 sequences of 8k tokens, in every form."""

from types import SimpleNamespace

import torch

from benchmarks import _kv
from benchmarks.attention_tree import binary_tree
from kernelbook import backend
from kernelbook.kernels import attention_mla as mla
from kernelbook.kernels.kv_quantize import kv_quantize

BATCH, CONTEXT, SHARED, DRAFTED = 16, 8192, 7168, 16
LATENT, ROPE = 512, 64
SHARED_PAGE, MLA_PAGE, TREE_PAGE = 64, 64, 16


def grouped() -> dict:
    """Keys and values, contiguous and as pools; the same in 8 bits."""
    q, k, v = _kv.query_and_kv(BATCH, CONTEXT)
    codes = {kind: (*kv_quantize(k, to), *kv_quantize(v, to)) for kind, to in _kv.CODES.items()}
    tables = {page: _kv.table_of(BATCH, CONTEXT // page) for page in (16, 256)}
    lengths = _kv.lengths_of(BATCH, CONTEXT)
    return {"q": q, "k": k, "v": v, "codes": codes, "tables": tables, "lengths": lengths}


def shared() -> dict:
    """A prefix and each sequence's own rest; as pages, those of the prefix named by all."""
    heads, head_dim, rest = _kv.HEADS["kv_heads"], _kv.HEADS["head_dim"], CONTEXT - SHARED
    first = _kv.table_of(1, SHARED // SHARED_PAGE)
    then = _kv.table_of(BATCH, rest // SHARED_PAGE) + first.shape[1]
    pages = first.shape[1] + then.numel()
    return {
        "prefix": [_kv.randn(heads, SHARED, head_dim) for _ in range(2)],
        "own": [_kv.randn(BATCH, heads, rest, head_dim) for _ in range(2)],
        "own_lengths": _kv.lengths_of(BATCH, rest),
        "shared_pool": [_kv.randn(pages, heads, SHARED_PAGE, head_dim) for _ in range(2)],
        "shared_table": torch.cat([first.expand(BATCH, -1), then], dim=1),
    }


def latent() -> dict:
    """MLA's query and cache, contiguous and as a pool; its latent in 8 bits."""
    cache = _kv.randn(BATCH, CONTEXT, LATENT + ROPE)
    return {
        "mla_q": _kv.randn(BATCH, _kv.HEADS["query_heads"], LATENT + ROPE),
        "cache": cache,
        "latent_codes": mla.quantize_latent(cache[..., :LATENT]),
        "mla_table": _kv.table_of(BATCH, CONTEXT // MLA_PAGE),
    }


def drafted() -> dict:
    """Queries of a binary tree, and pools with room for its keys behind the context's."""
    heads, head_dim = _kv.HEADS["kv_heads"], _kv.HEADS["head_dim"]
    pages = -(-(CONTEXT + DRAFTED) // TREE_PAGE)
    pool = (BATCH * pages, heads, TREE_PAGE, head_dim)
    return {
        "tree_q": _kv.randn(BATCH, _kv.HEADS["query_heads"], DRAFTED, head_dim),
        "tree_pool": [_kv.randn(*pool) for _ in range(2)],
        "tree_table": _kv.table_of(BATCH, pages),
        "ancestors": binary_tree(DRAFTED).to(backend.DEVICE).expand(BATCH, -1),
    }


def inputs() -> tuple[SimpleNamespace]:
    """One set: everything that any variant reads."""
    return (SimpleNamespace(**grouped(), **shared(), **latent(), **drafted()),)

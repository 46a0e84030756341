"""What the benchmarks of KV layouts share: shapes, random KV, pages in random order, references.

A pool of pages is the memory of contiguous KV taken otherwise, its pages in random order, so that
layouts are compared on the same bytes.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import _rotated
from kernelbook import backend
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_mla as mla
from kernelbook.kernels.attention_paged import gather
from kernelbook.kernels.kv_quantize import dequantize

DTYPE = torch.bfloat16
HEADS = {"query_heads": 32, "kv_heads": 8, "head_dim": 128}
CODES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def shape_of(batch: int, length: int) -> dict:
    """The shape of a record: one query a sequence."""
    return {"batch": batch, "lengths": length, "queries": 1, **HEADS}


def sizes_of(batch: int, length: int) -> dict:
    """The arguments of `work` without dtype: a list of lengths, as they are read."""
    return {**shape_of(batch, length), "lengths": [length] * batch}


def randn(*size: int) -> torch.Tensor:
    return torch.randn(size, device=backend.DEVICE, dtype=DTYPE)


def query_and_kv(batch: int, length: int):
    """q [B, Hq, 1, D], k and v [B, Hkv, S, D]."""
    kv = (batch, HEADS["kv_heads"], length, HEADS["head_dim"])
    return randn(batch, HEADS["query_heads"], 1, HEADS["head_dim"]), randn(*kv), randn(*kv)


def lengths_of(batch: int, length: int) -> torch.Tensor:
    return torch.full((batch,), length, dtype=torch.int32, device=backend.DEVICE)


def table_of(batch: int, pages: int) -> torch.Tensor:
    """A block table int32 [B, pages] that names each page of a pool once, in random order."""
    return torch.randperm(batch * pages, device=backend.DEVICE).int().view(batch, pages)


def pool(x: torch.Tensor, page: int) -> torch.Tensor:
    """The memory of [B, H, S, ...] as pages [N, H, page, ...]."""
    return x.view(-1, x.shape[1], page, *x.shape[3:])


def cudnn(q, k, v, mask=None, gqa=True):
    """SDPA by cuDNN, named: by itself PyTorch picks FlashAttention-2 here."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=gqa)


# --- sampled sequences in float64 ----------------------------------------------------------


def attended(q, k, v, lengths) -> torch.Tensor:
    """Of contiguous KV."""
    some = _rotated.sample(len(q))
    doubles = (x[some].double() for x in (q, k, v))
    return decode.reference(*doubles, lengths[some])


def attended_pages(q, k, v, table, lengths) -> torch.Tensor:
    """Of pools [N, Hkv, page, D]."""
    some = _rotated.sample(len(q))
    k, v = (gather(x, table[some]).double() for x in (k, v))
    return decode.reference(q[some].double(), k, v, lengths[some])


def attended_codes(q, k, k_scale, v, v_scale, lengths, table=None) -> torch.Tensor:
    """Of codes and scales, contiguous or on pages: what the codes stand for is exact here."""
    some = _rotated.sample(len(q))
    parts = [x[some] if table is None else gather(x, table[some]) for x in (k, k_scale, v, v_scale)]
    k, v = (dequantize(*parts[at : at + 2], torch.float64) for at in (0, 2))
    return decode.reference(q[some].double(), k, v, lengths[some])


def attended_latent(q, latent, rope, lengths, scale=None, table=None) -> torch.Tensor:
    """Of MLA's cache, contiguous [B, S, L] or pools [N, page, L]; int8 where `scale` is given."""
    some = _rotated.sample(len(q))

    def rows(x):
        return x[some] if table is None else x[table[some].long()].flatten(1, 2)

    q, latent, rope = q[some].double(), rows(latent).double(), rows(rope).double()
    scale = None if scale is None else rows(scale).double()
    return mla.reference(q, latent, rope, lengths[some], latent_scale=scale)

"""Every layout of the cache at one shape, in one run: what a decode step's attention costs.

16 sequences of 8k tokens, 32 query heads. Grouped-query layouts have 8 KV heads of 128, MLA one row
of 512 + 64 for all heads, whose query and output are wider. `shared_*`: 7k tokens of the 8k are
common to all. `tree_paged_16` verifies 16 drafted tokens a sequence, all others attend for one.
"""

from functools import partial

from benchmarks import _kv, _rotated
from benchmarks import _layout_inputs as given
from benchmarks.attention_tree import binary_tree
from kernelbook import backend, kv_bytes
from kernelbook.kernels import attention_cascade as cascade
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_mla as mla
from kernelbook.kernels import attention_paged as paged
from kernelbook.kernels import attention_quantized as quantized
from kernelbook.kernels import attention_tree as tree
from kernelbook.work import Work

PEERS = ("sdpa_cudnn",)


# --- variants ------------------------------------------------------------------------------


def contiguous(x):
    return decode.attention_decode(x.q, x.k, x.v, x.lengths)


def sdpa_cudnn(x):
    return _kv.cudnn(x.q, x.k, x.v)


def on_pages(page: int, x):
    pools = (_kv.pool(kv, page) for kv in (x.k, x.v))
    return paged.attention_paged(x.q, *pools, x.tables[page], x.lengths)


def in_codes(kind: str, page: int, x):
    codes = [_kv.pool(part, page) if page else part for part in x.codes[kind]]
    k, k_scale, v, v_scale = codes
    table = x.tables[page] if page else None
    return quantized.attention_quantized(x.q, k, v, k_scale, v_scale, x.lengths, table)


def shared_prefix(x):
    return cascade.attention_cascade(x.q, *x.prefix, *x.own, x.own_lengths)


def shared_pages(x):
    return paged.attention_paged(x.q, *x.shared_pool, x.shared_table, x.lengths)


def mla_parts(kind: str, page: int, x) -> tuple:
    """latent, rope, scale or None, table or None."""
    codes, scale = x.latent_codes
    parts = [x.cache[..., : given.LATENT], x.cache[..., given.LATENT :], None]
    if kind == "int8":
        parts = [codes, x.cache[..., given.LATENT :], scale]
    if page:  # a row's stride stays what it is
        parts = [y if y is None else y.reshape(-1, page, *y.shape[2:]) for y in parts]
    return (*parts, x.mla_table if page else None)


def in_latents(kind: str, page: int, x):
    values, rope, scale, table = mla_parts(kind, page, x)
    options = {"latent_scale": scale, "block_table": table}
    return mla.attention_mla(x.mla_q, values, rope, x.lengths, **options)


def tree_paged(x):
    options = {"block_table": x.tree_table}
    return tree.attention_tree(x.tree_q, *x.tree_pool, x.ancestors, x.lengths, **options)


CALLS = {
    "contiguous": contiguous,
    **{f"paged_{page}": partial(on_pages, page) for page in (16, 256)},
    **{kind: partial(in_codes, kind, 0) for kind in _kv.CODES},
    **{f"{kind}_paged_16": partial(in_codes, kind, 16) for kind in _kv.CODES},
    "shared_prefix": shared_prefix,
    "shared_pages": shared_pages,
    "mla": partial(in_latents, "bf16", 0),
    "mla_paged_64": partial(in_latents, "bf16", given.MLA_PAGE),
    "mla_int8": partial(in_latents, "int8", 0),
    "mla_int8_paged_64": partial(in_latents, "int8", given.MLA_PAGE),
    "tree_paged_16": tree_paged,
    "sdpa_cudnn": sdpa_cudnn,
}


# --- the same in float64, sampled sequences ------------------------------------------------


def contiguous64(x):
    return _kv.attended(x.q, x.k, x.v, x.lengths)


def pages64(page: int, x):
    pools = (_kv.pool(kv, page) for kv in (x.k, x.v))
    return _kv.attended_pages(x.q, *pools, x.tables[page], x.lengths)


def codes64(kind: str, page: int, x):
    codes = (_kv.pool(part, page) if page else part for part in x.codes[kind])
    return _kv.attended_codes(x.q, *codes, x.lengths, x.tables[page] if page else None)


def prefix64(x):
    some = _rotated.sample(given.BATCH)
    doubles = [*(kv.double() for kv in x.prefix), *(kv[some].double() for kv in x.own)]
    return cascade.reference(x.q[some].double(), *doubles, x.own_lengths[some])


def shared64(x):
    return _kv.attended_pages(x.q, *x.shared_pool, x.shared_table, x.lengths)


def latents64(kind: str, page: int, x):
    values, rope, scale, table = mla_parts(kind, page, x)
    return _kv.attended_latent(x.mla_q, values, rope, x.lengths, scale, table)


def tree64(x):
    some = _rotated.sample(given.BATCH)
    k, v = (paged.gather(kv, x.tree_table[some]).double() for kv in x.tree_pool)
    return tree.reference(x.tree_q[some].double(), k, v, x.ancestors[some], x.lengths[some])


EXPECTED = {
    "contiguous": contiguous64,
    "sdpa_cudnn": contiguous64,
    **{f"paged_{page}": partial(pages64, page) for page in (16, 256)},
    **{kind: partial(codes64, kind, 0) for kind in _kv.CODES},
    **{f"{kind}_paged_16": partial(codes64, kind, 16) for kind in _kv.CODES},
    "shared_prefix": prefix64,
    "shared_pages": shared64,
    "mla": partial(latents64, "bf16", 0),
    "mla_paged_64": partial(latents64, "bf16", given.MLA_PAGE),
    "mla_int8": partial(latents64, "int8", 0),
    "mla_int8_paged_64": partial(latents64, "int8", given.MLA_PAGE),
    "tree_paged_16": tree64,
}


# --- records -------------------------------------------------------------------------------


def layout_of(variant: str) -> kv_bytes.Layout:
    """The peer keeps its KV contiguous."""
    name = "contiguous" if variant in PEERS else variant
    heads = {name: _kv.HEADS[name] for name in ("kv_heads", "head_dim")}
    return kv_bytes.layout(name, [given.CONTEXT] * given.BATCH, **heads)


def work_of(variant: str) -> Work:
    """Useful work. Shared pages are counted for each sequence: it is L2 that may answer."""
    layout, lengths = layout_of(variant), [given.CONTEXT] * given.BATCH
    query_heads, kv_heads, head_dim = _kv.HEADS.values()
    page = layout.page_size or None
    if variant.startswith("mla"):
        eight = layout.kv == "int8"
        return mla.work(lengths, query_heads, _kv.DTYPE, given.LATENT, given.ROPE, eight, page)
    if variant.startswith("tree"):
        sizes = (query_heads, kv_heads, given.DRAFTED, head_dim, _kv.DTYPE)
        pairs = sum(bits.bit_count() for bits in binary_tree(given.DRAFTED).tolist())
        return tree.work(lengths, *sizes, pairs, page)
    if variant == "shared_prefix":
        own = [given.CONTEXT - given.SHARED] * given.BATCH
        return cascade.work(query_heads, kv_heads, given.SHARED, own, head_dim, _kv.DTYPE)
    sizes = (given.BATCH, query_heads, kv_heads, lengths, head_dim, _kv.DTYPE)
    if layout.kv != "bf16":
        return quantized.work(*sizes, page_size=layout.page_size)
    return paged.work(*sizes, page) if page else decode.work(*sizes)


def stored_bytes(variant: str) -> int:
    """Bytes of the cache in memory: what is shared is there once."""
    tokens = given.BATCH * given.CONTEXT
    if variant.startswith("shared"):
        tokens -= (given.BATCH - 1) * given.SHARED
    return tokens * layout_of(variant).bytes_per_token


def record(writer, variant: str, time) -> None:
    layout, work = layout_of(variant), work_of(variant)
    kept = layout._asdict()
    names = ("bytes_per_token", "metadata_bytes", "page_size", "contiguous", "kv", "kind")
    print(
        f"{variant:18} {time.median_us:8.1f} us {time.per_s(work.bytes) / 1e12:5.2f} TB/s, "
        f"{layout.bytes_per_token:5} bytes a token"
    )
    shape = {
        "batch": given.BATCH,
        "lengths": given.CONTEXT,
        "query_heads": _kv.HEADS["query_heads"],
    }
    writer.add(
        op="kv_layouts", variant=variant, peer=variant in PEERS, shape=shape, dtype=_kv.DTYPE,
        timing=time, work=work, stored_bytes=stored_bytes(variant),
        **{name: kept[name] for name in names},
    )  # fmt: skip


def run(writer) -> None:
    """All layouts in turn; without a GPU nothing."""
    if not backend.GPU:
        print("kv_layouts: skipped, no GPU")
        return
    least = min(work_of(variant).bytes for variant in CALLS)
    found = _rotated.side_by_side(CALLS, given.inputs, least, EXPECTED, PEERS)
    for variant, time in found.items():
        record(writer, variant, time)

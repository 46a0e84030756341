"""Counts all shared tokens once, also those that each sequence has on a page of its own.

cell: lab05_task1
points: 5.5
says: those on their last, partial page are there once a sequence
"""


def token_bytes(layout):
    """Bytes that one token takes in the cache, all layers together."""
    number, scale = (1, 4) if layout.quantized else (2, 0)
    if layout.latent:
        row = layout.latent * number + scale + layout.rope * 2
    else:
        row = 2 * layout.kv_heads * (layout.head_dim * number + scale)
    return layout.layers * row


def page_use(lengths, page_size, shared=0):
    """(pages, table entries, empty places) of sequences that share their first tokens."""
    whole = shared // page_size  # pages that all sequences share
    own = [length - whole * page_size for length in lengths]
    own_pages = sum(-(-tokens // page_size) for tokens in own)
    stored = shared + sum(length - shared for length in lengths)
    empty = (whole + own_pages) * page_size - stored
    return whole + own_pages, whole * len(lengths) + own_pages, empty

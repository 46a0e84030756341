"""What decode kernels share: one program streams one split of one sequence's keys and values.

With one query a sequence, queries alone give far fewer programs than a GPU has SMs. So each
sequence's KV is cut into `splits` runs of whole tiles. A program attends to one run for all query
heads of a KV head at once (they are the rows of its matrix products, so KV is read once), and
leaves a partial result: its output and its log-sum-exp, base 2. Partial results merge exactly:

    out = Σ 2^(lse_s - top) out_s / Σ 2^(lse_s - top),   top = max lse_s

either in the program of a group that arrives last, or in a second kernel, `merge_kernel`. KV is
contiguous or paged (PAGE > 0), and of the queries' dtype or quantized (k_scale given).
Source: Dao et al., Flash-Decoding (2023); Kwon et al., PagedAttention (2023).
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernelbook.kernels._byte_pairs import stream_pairs
from kernelbook.kernels._kv_tiles import load_tile, page_of, softmax_step, tiles_of, tokens_at


@triton.jit
def stream(
    q, last, begin, end, k, v, k_scale, v_scale, table, table_stride,
    k_strides, v_strides, ks_strides, vs_strides, scale,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Attend to the tokens from `begin` to `end`; row r sees those up to `last[r]`.

    Returns the unnormalized output, the sum of exponentials and the maximum of each row.
    """
    acc = tl.zeros([BLOCK_M, WIDTH], dtype=tl.float32)
    l = tl.zeros([BLOCK_M], dtype=tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    if PAGE > 0:
        ahead = page_of(table, begin, end, table_stride, BLOCK_N, PAGE)
    for start in range(begin, end, BLOCK_N):
        page = 0
        if PAGE > 0:  # a page's number is read a tile ahead of the page
            page = ahead
            ahead = page_of(table, start + BLOCK_N, end, table_stride, BLOCK_N, PAGE)
        token = start + tl.arange(0, BLOCK_N)
        inside = token < end

        k_at = tokens_at(k, start, page, k_strides[0], k_strides[2], BLOCK_N, PAGE)
        k_tile = load_tile(k_at, inside, k_strides[3], HEAD_DIM, WIDTH)
        scores = tl.dot(q, k_tile.to(q.dtype).T, input_precision="ieee")  # [BLOCK_M, BLOCK_N]
        if k_scale is not None:
            at = tokens_at(k_scale, start, page, ks_strides[0], ks_strides[2], BLOCK_N, PAGE)
            scores *= tl.load(at, mask=inside, other=0.0)[None, :]
        visible = inside[None, :]
        if CAUSAL:
            visible = visible & (token[None, :] <= last[:, None])
        scores = tl.where(visible, scores, float("-inf"))

        p, rescale, l, m = softmax_step(scores, l, m, scale, CAUSAL)
        acc = acc * rescale[:, None]

        v_at = tokens_at(v, start, page, v_strides[0], v_strides[2], BLOCK_N, PAGE)
        v_tile = load_tile(v_at, inside, v_strides[3], HEAD_DIM, WIDTH).to(q.dtype)
        if v_scale is None:
            acc = tl.dot(p.to(q.dtype), v_tile, acc, input_precision="ieee")
        else:
            at = tokens_at(v_scale, start, page, vs_strides[0], vs_strides[2], BLOCK_N, PAGE)
            factor = tl.load(at, mask=inside, other=0.0)
            if q.dtype == tl.float16:  # small p times a small scale would underflow
                largest = tl.maximum(tl.max(factor, axis=0), 1e-30)
                p = p * (factor / largest)[None, :]
                acc += tl.dot(p.to(q.dtype), v_tile) * largest
            else:
                p = p * factor[None, :]
                acc = tl.dot(p.to(q.dtype), v_tile, acc, input_precision="ieee")
    return acc, l, m


@triton.jit
def merge_rows(
    partial, partial_lse, out, lse, group, start, rows, splits, used,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """ROWS output rows of a group from the partial results of its first `used` splits.

    A split that attended to nothing has a log-sum-exp of -inf, so its weight is 0. Mostly CHUNK
    holds all splits: one round of loads. They bypass the L1, which could hold a line from before
    another SM wrote it.
    """
    row = start + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    first = tl.cast(group, tl.int64) * splits
    acc = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    top = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    for chunk in range(0, used, CHUNK):
        part = chunk + tl.arange(0, CHUNK)
        place = (first + part)[:, None] * rows + row[None, :]
        there = (part < used)[:, None] & (row < rows)[None, :]
        log = tl.load(partial_lse + place, mask=there, other=float("-inf"), cache_modifier=".cg")
        results = tl.load(  # [CHUNK, ROWS, WIDTH]
            partial + place[:, :, None] * HEAD_DIM + column[None, None, :],
            mask=there[:, :, None] & (column < HEAD_DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        top_new = tl.maximum(top, tl.max(log, axis=0))
        base = tl.where(top_new == float("-inf"), 0.0, top_new)  # no split saw a key: weights 0
        weight = tl.math.exp2(log - base[None, :])
        rescale = tl.math.exp2(top - base)
        total = total * rescale + tl.sum(weight, axis=0)
        acc = acc * rescale[:, None] + tl.sum(results * weight[:, :, None], axis=0)
        top = top_new
    store_rows(out, lse, group, row, rows, acc, total, top, HEAD_DIM, WIDTH)


@triton.jit
def store_rows(
    out, lse, place, row, rows, acc, l, base, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr
):
    """Normalize and write rows of output; `lse` as a natural logarithm where it is wanted."""
    total = tl.where(l == 0.0, 1.0, l)  # a row that saw no key: 0 / 1 is the 0 that we promise
    at = tl.cast(place, tl.int64) * rows + row
    column = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < HEAD_DIM)[None, :]
    to = out + at[:, None] * HEAD_DIM + column[None, :]
    tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=inside)
    if lse is not None:
        log = (base + tl.math.log2(total)) * 0.6931471805599453
        tl.store(lse + at, tl.where(l == 0.0, float("-inf"), log), mask=row < rows)


@triton.jit
def split_item(
    item, q, k, v, k_scale, v_scale, table, lengths, out, lse, partial, partial_lse, counters,
    capacity, kv_heads, queries, rows, splits, m_tiles, scale,
    q_strides, k_strides, v_strides, ks_strides, vs_strides, table_strides,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr, CAUSAL: tl.constexpr, LAST: tl.constexpr,
    SPLIT: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """One split of one group: BLOCK_M of the query rows that share a KV head of a sequence."""
    m_tile = item % m_tiles
    split = item // m_tiles % splits
    group = item // (m_tiles * splits)
    batch, kv_head = group // kv_heads, group % kv_heads
    length, each, used = tiles_of(batch, lengths, capacity, splits, BLOCK_N)
    if split < tl.maximum(used, 1):  # else it is empty and counts as a log-sum-exp of -inf
        row = m_tile * BLOCK_M + tl.arange(0, BLOCK_M)
        head = kv_head * (rows // queries) + row // queries
        column = tl.arange(0, WIDTH)
        q += tl.cast(batch, tl.int64) * q_strides[0]
        at = head.to(tl.int64) * q_strides[1] + row % queries * q_strides[2]
        inside = (row < rows)[:, None] & (column < HEAD_DIM)[None, :]
        q_tile = tl.load(q + at[:, None] + column[None, :] * q_strides[3], mask=inside, other=0.0)
        if k.dtype.element_ty == tl.float8e4nv and q_tile.dtype == tl.bfloat16:
            q_tile = q_tile.to(tl.float16)  # what fp8 converts to in one instruction

        block = 0 if PAGE > 0 else tl.cast(batch, tl.int64)  # pages are found through the table
        k += block * k_strides[0] + tl.cast(kv_head, tl.int64) * k_strides[1]
        v += block * v_strides[0] + tl.cast(kv_head, tl.int64) * v_strides[1]
        if k_scale is not None:
            k_scale += block * ks_strides[0] + tl.cast(kv_head, tl.int64) * ks_strides[1]
            v_scale += block * vs_strides[0] + tl.cast(kv_head, tl.int64) * vs_strides[1]
        if PAGE > 0:
            table += tl.cast(batch, tl.int64) * table_strides[0]
        begin = split * each * BLOCK_N
        end = tl.minimum(begin + each * BLOCK_N, length)
        last = length - queries + row % queries
        if PAIRS:
            acc, l, m = stream_pairs(
                q_tile, last, begin, end, k, v, k_scale, v_scale,
                table, table_strides[1], k_strides, v_strides, ks_strides, vs_strides, scale,
                WIDTH, BLOCK_M, BLOCK_N, PAGE, CAUSAL,
            )  # fmt: skip
        else:
            acc, l, m = stream(
                q_tile, last, begin, end, k, v, k_scale, v_scale,
                table, table_strides[1], k_strides, v_strides, ks_strides, vs_strides, scale,
                HEAD_DIM, WIDTH, BLOCK_M, BLOCK_N, PAGE, CAUSAL,
            )  # fmt: skip

        if not SPLIT:  # noqa: SIM114 (known to the compiler, which then drops the rest)
            store_rows(out, lse, group, row, rows, acc, l, m * scale, HEAD_DIM, WIDTH)
        elif used <= 1:
            store_rows(out, lse, group, row, rows, acc, l, m * scale, HEAD_DIM, WIDTH)
        else:
            total = tl.where(l == 0.0, 1.0, l)
            place = tl.cast(group, tl.int64) * splits + split
            log = tl.where(l == 0.0, float("-inf"), m * scale + tl.math.log2(total))
            tl.store(partial_lse + place * rows + row, log, mask=row < rows)
            to = partial + (place * rows + row)[:, None] * HEAD_DIM + column[None, :]
            tl.store(to, acc / total[:, None], mask=inside)
            if LAST:
                tl.debug_barrier()  # all threads have stored before one of them says so
                counter = counters + group * m_tiles + m_tile
                if tl.atomic_add(counter, 1, sem="acq_rel") == used - 1:
                    end_row = tl.minimum((m_tile + 1) * BLOCK_M, rows)
                    for start in range(m_tile * BLOCK_M, end_row, ROWS):
                        merge_rows(
                            partial, partial_lse, out, lse, group, start, rows, splits, used,
                            HEAD_DIM, WIDTH, ROWS, CHUNK,
                        )  # fmt: skip
                    tl.store(counter, 0)  # ready for the next launch, or a graph's next replay


VARYING = ["capacity", "kv_heads", "queries", "rows", "splits", "m_tiles", "items"]


# Lengths and counts are not specialized: one binary serves them all.
@triton.jit(do_not_specialize=VARYING)
def split_kv_kernel(
    q, k, v, k_scale, v_scale, table, lengths, out, lse, partial, partial_lse, counters,
    capacity, kv_heads, queries, rows, splits, m_tiles, items, scale,
    q_strides, k_strides, v_strides, ks_strides, vs_strides, table_strides,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PAGE: tl.constexpr, CAUSAL: tl.constexpr, LAST: tl.constexpr,
    SPLIT: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    PAIRS: tl.constexpr, PERSISTENT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program takes one item (a split of a group), or every num_programs-th where PERSISTENT.

    `scale` contains log2(e). SPLIT says whether `splits` is more than 1.
    """
    if PDL:  # started while the kernel before it ends; the next one may start while this one ends
        gdc_wait()
        gdc_launch_dependents()
    if PERSISTENT:
        for item in range(tl.program_id(0), items, tl.num_programs(0)):
            split_item(
                item, q, k, v, k_scale, v_scale, table, lengths, out, lse, partial, partial_lse,
                counters, capacity, kv_heads, queries, rows, splits, m_tiles, scale,
                q_strides, k_strides, v_strides, ks_strides, vs_strides, table_strides,
                HEAD_DIM, WIDTH, BLOCK_M, BLOCK_N, PAGE, CAUSAL, LAST, SPLIT, ROWS, CHUNK, PAIRS,
            )  # fmt: skip
    else:
        split_item(
            tl.program_id(0), q, k, v, k_scale, v_scale, table, lengths, out, lse, partial,
            partial_lse, counters, capacity, kv_heads, queries, rows, splits, m_tiles, scale,
            q_strides, k_strides, v_strides, ks_strides, vs_strides, table_strides,
            HEAD_DIM, WIDTH, BLOCK_M, BLOCK_N, PAGE, CAUSAL, LAST, SPLIT, ROWS, CHUNK, PAIRS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["capacity", "kv_heads", "rows", "splits"])
def merge_kernel(
    partial, partial_lse, out, lse, lengths, capacity, kv_heads, rows, splits,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program merges one output row. A sequence with one split in use is already written."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    group, row = tl.program_id(0) // rows, tl.program_id(0) % rows
    _, _, used = tiles_of(group // kv_heads, lengths, capacity, splits, BLOCK_N)
    if used > 1:
        merge_rows(
            partial, partial_lse, out, lse, group, row, rows, splits, used,
            HEAD_DIM, WIDTH, 1, CHUNK,
        )  # fmt: skip

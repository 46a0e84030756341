"""Tiled prefill attention for Hopper (sm_90), with warp roles: the fast twin of the plain kernel.

The plain kernel leaves the tensor cores idle while it computes exponentials. Here warps have
roles and hand tiles to each other through barriers in shared memory:

* one producer warp keeps the copy engine (TMA) ahead by STAGES tiles of keys and of values;
* consumers of four warps each own 64 queries, and share the tiles of keys and values.

How the exponentials hide behind the tensor cores depends on registers. Head dimension 128: two
consumers of 240 registers a thread; a consumer issues q kᵀ of its next tile and p v of its current
one, computes the next exponentials meanwhile, and the two take turns. Head dimension 64: the
exponentials, not the matrix products, are the bottleneck; three consumers of 160 registers that
simply run at different points give the schedulers more to choose from (on an H200, 2 × 32 × 8192,
full: 527 TFLOP/s, against 460 for two that overlap and take turns).

Written in Gluon, the layer below Triton where layouts, shared memory and barriers are explicit.
The interpreter cannot run it; `attention_prefill_kernel` is its plain twin under the same tests.

Tried on an H200 and left out (TFLOP/s, full attention): tiles of 64 keys (128 wide: 549 against
688; 64 wide: 446), 256 keys at 64 wide (spills: 401), three overlapping consumers at 64 wide
(spills: 243), no turns at 128 wide (621 against 652), keys and values released by one arrival
(no difference), partial sums kept per thread (1%, for ten more lines), all heads at once under a
causal mask although their keys exceed the L2 (128 wide, 2k: 425 against 509).

Weakest at head dimension 64 under a causal mask: a tile is 192 rows there, so its diagonal wastes
more and pairs of tiles fill the SMs less evenly.

Source: Shah et al., FlashAttention-3 (2024).
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernelbook import backend

IN_L2 = 2**25  # bytes: half of the L2, the rest is for queries and outputs
KEYS = 128  # of a tile
ROWS = gl.constexpr(64)  # queries of a consumer: what four warps give the tensor cores at once


@gluon.jit
def _assignment(step, tiles, heads, CAUSAL: gl.constexpr, FOLDED: gl.constexpr):
    """The head and the tile of rows that this program computes at `step`.

    Full attention: all tiles cost the same and are dealt out in turn, head by head, so that
    programs that run together share keys in L2. Causal: tile r costs r + 1 tiles of keys.
    Dealt forth and back (0 .. P-1, P-1 .. 0), longest first, the sums come out equal; but then all
    heads are under way at once. Where their keys do not fit in L2, FOLDED: each head's tiles are
    paired, longest with shortest, and a program takes a pair, so heads can follow one another.
    """
    programs = gl.num_programs(0)
    place = gl.program_id(0)
    if not CAUSAL:
        number = step * programs + place
        head = number // tiles
        tile = number % tiles
    elif FOLDED:
        number = 2 * (step // 2 * programs + place) + step % 2
        within = number % tiles
        head = number // tiles
        tile = gl.where(within % 2 == 0, tiles - 1 - within // 2, within // 2)
    else:
        number = step * programs + gl.where(step % 2 == 0, place, programs - 1 - place)
        head = number % heads
        tile = tiles - 1 - number // heads
    return head, tile


@gluon.jit
def _steps(total, CAUSAL: gl.constexpr, FOLDED: gl.constexpr):
    """How many of `total` tiles this program computes."""
    programs = gl.num_programs(0)
    place = gl.program_id(0)
    rounds = total // programs
    if not CAUSAL:
        steps = rounds + gl.where(place < total % programs, 1, 0)
    elif FOLDED:
        rounds = rounds // 2
        left = total - 2 * (rounds * programs + place)
        steps = 2 * rounds + gl.minimum(gl.maximum(left, 0), 2)
    else:
        place = gl.where(rounds % 2 == 0, place, programs - 1 - place)
        steps = rounds + gl.where(place < total % programs, 1, 0)
    return steps


@gluon.jit
def _key_tiles(start_m, queries, keys, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
               CAUSAL: gl.constexpr):  # fmt: skip
    """(tiles of keys that some row sees, tiles that every row sees whole)."""
    end = keys
    free = keys
    if CAUSAL:
        end = gl.minimum(keys, start_m + BLOCK_M + keys - queries)
        free = gl.minimum(keys, start_m + 1 + keys - queries)
    return gl.cdiv(end, BLOCK_N), free // BLOCK_N


@gluon.jit
def _produce(
    arguments, barriers, CONSUMERS: gl.constexpr, CAUSAL: gl.constexpr, FOLDED: gl.constexpr
):  # fmt: skip
    """Fetch tiles in the order in which the consumers want them: k, then k and v in turn."""
    q, k, v, q_tiles, k_tiles, v_tiles, query_heads, kv_heads, queries, keys, heads = arguments
    q_ready, q_free, k_ready, k_free, v_ready, v_free = barriers
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    BLOCK_N: gl.constexpr = k.block_type.shape[2]
    STAGES: gl.constexpr = k_tiles.shape[0]
    tiles = gl.cdiv(queries, BLOCK_M)
    group = query_heads // kv_heads
    BYTES: gl.constexpr = k.block_type.nbytes
    count = 0
    for step in range(0, _steps(tiles * heads, CAUSAL, FOLDED)):
        index, tile = _assignment(step, tiles, heads, CAUSAL, FOLDED)
        start_m = tile * BLOCK_M
        batch = index // query_heads
        head = index % query_heads
        end, _ = _key_tiles(start_m, queries, keys, BLOCK_M, BLOCK_N, CAUSAL)
        for c in gl.static_range(CONSUMERS):
            mbarrier.wait(q_free.index(c), (step & 1) ^ 1)
            mbarrier.expect(q_ready.index(c), q.block_type.nbytes)
            tma.async_copy_global_to_shared(
                q, [batch, head, start_m + c * ROWS, 0], q_ready.index(c), q_tiles.index(c)
            )
        for i in range(0, end + 1):
            if i < end:
                stage = (count + i) % STAGES
                phase = ((count + i) // STAGES) & 1
                mbarrier.wait(k_free.index(stage), phase ^ 1)
                mbarrier.expect(k_ready.index(stage), BYTES)
                tma.async_copy_global_to_shared(
                    k, [batch, head // group, (end - 1 - i) * BLOCK_N, 0],
                    k_ready.index(stage), k_tiles.index(stage),
                )  # fmt: skip
            if i > 0:
                stage = (count + i - 1) % STAGES
                phase = ((count + i - 1) // STAGES) & 1
                mbarrier.wait(v_free.index(stage), phase ^ 1)
                mbarrier.expect(v_ready.index(stage), BYTES)
                tma.async_copy_global_to_shared(
                    v, [batch, head // group, (end - i) * BLOCK_N, 0],
                    v_ready.index(stage), v_tiles.index(stage),
                )  # fmt: skip
        count += end


@gluon.jit
def _softmax(scores, m, l, row, start_n, keys, offset, scale, MASK: gl.constexpr,
             CAUSAL: gl.constexpr):  # fmt: skip
    """One step of the online softmax: (p, new m, new l, factor for what was added up before)."""
    if MASK:
        LAYOUT: gl.constexpr = scores.type.layout
        column = start_n + gl.arange(0, scores.shape[1], layout=gl.SliceLayout(0, LAYOUT))
        visible = (column < keys)[None, :]
        if CAUSAL:
            visible = visible & (column[None, :] <= row[:, None] + offset)
        scores = gl.where(visible, scores, float("-inf"))
    m_new = gl.maximum(m, gl.max(scores, axis=1))
    base = m_new * scale
    if MASK:  # the last tile may hide all of its keys from the first rows
        base = gl.where(m_new == float("-inf"), 0.0, base)
    p = gl.exp2(scores * scale - base[:, None])
    rescale = gl.exp2(m * scale - base)
    return p, m_new, l * rescale + gl.sum(p, axis=1), rescale


@gluon.jit
def _consume_tiles(
    acc, p, l, m, count, begin, stop, q_tile, k_tiles, v_tiles, k_ready, k_free, v_ready, v_free,
    turn, row, keys, offset, scale,
    c: gl.constexpr, CONSUMERS: gl.constexpr, MASK: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Tiles begin, begin - 1, .. stop of keys. p belongs to the tile before, not yet added."""
    STAGES: gl.constexpr = k_tiles.shape[0]
    BLOCK_N: gl.constexpr = k_tiles.shape[3]
    WIDTH: gl.constexpr = k_tiles.shape[4]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    ACC: gl.constexpr = acc.type.layout
    OVERLAP: gl.constexpr = CONSUMERS == 2
    empty = gl.zeros([ROWS, BLOCK_N], gl.float32, LAYOUT)
    for i in range(0, begin - stop + 1):
        k_stage = count % STAGES
        v_stage = (count - 1) % STAGES
        if OVERLAP:  # two consumers take turns at the tensor cores
            mbarrier.wait(turn.index(c), (count & 1) ^ (1 if c == 0 else 0))
        k_tile = k_tiles.index(k_stage).reshape([BLOCK_N, WIDTH])
        scores = warpgroup_mma(q_tile, k_tile.permute([1, 0]), empty, use_acc=False, is_async=True)
        mbarrier.wait(v_ready.index(v_stage), ((count - 1) // STAGES) & 1)
        v_tile = v_tiles.index(v_stage).reshape([BLOCK_N, WIDTH])
        acc = warpgroup_mma(p, v_tile, acc, is_async=True)
        if OVERLAP:
            mbarrier.arrive(turn.index(1 - c))
            scores = warpgroup_mma_wait(1, deps=[scores])
        else:
            scores, acc = warpgroup_mma_wait(0, deps=[scores, acc])
            mbarrier.arrive(v_free.index(v_stage))
        mbarrier.arrive(k_free.index(k_stage))
        p_new, m, l, rescale = _softmax(
            scores, m, l, row, (begin - i) * BLOCK_N, keys, offset, scale, MASK, CAUSAL
        )
        p = gl.convert_layout(p_new.to(p.dtype), p.type.layout)
        count += 1
        mbarrier.wait(k_ready.index(count % STAGES), (count // STAGES) & 1, pred=begin - i > 0)
        if OVERLAP:
            # Not before the exponentials: p among the dependencies holds the compiler to that
            # order, and the loop inside the wait for keys, above, the assembler.
            acc, p = warpgroup_mma_wait(0, deps=[acc, p])
            mbarrier.arrive(v_free.index(v_stage))
        acc = acc * gl.convert_layout(rescale, gl.SliceLayout(1, ACC))[:, None]
    return acc, p, l, m, count


@gluon.jit
def _consume(
    arguments, barriers, lse, scale,
    c: gl.constexpr, CONSUMERS: gl.constexpr, CAUSAL: gl.constexpr,
    FOLDED: gl.constexpr, LSE: gl.constexpr,
):  # fmt: skip
    """Consumer c of a program: rows c · 64 .. c · 64 + 63 of each of its tiles."""
    q_tiles, k_tiles, v_tiles, o_tiles, turn, out, query_heads, queries, keys, heads = arguments
    q_ready, q_free, k_ready, k_free, v_ready, v_free = barriers
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    STAGES: gl.constexpr = k_tiles.shape[0]
    BLOCK_N: gl.constexpr = k_tiles.shape[3]
    WIDTH: gl.constexpr = k_tiles.shape[4]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    OVERLAP: gl.constexpr = CONSUMERS == 2
    LEFT: gl.constexpr = gl.DotOperandLayout(0, ACC, k_width=2)
    tiles = gl.cdiv(queries, BLOCK_M)
    offset = keys - queries
    count = 0
    for step in range(0, _steps(tiles * heads, CAUSAL, FOLDED)):
        index, tile = _assignment(step, tiles, heads, CAUSAL, FOLDED)
        start_m = tile * BLOCK_M
        first = start_m + c * ROWS
        all_tiles, _ = _key_tiles(start_m, queries, keys, BLOCK_M, BLOCK_N, CAUSAL)
        end, free = _key_tiles(first, queries, keys, ROWS, BLOCK_N, CAUSAL)
        if OVERLAP:  # taking turns, consumers must take equally many
            end = all_tiles
        row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
        acc = gl.zeros([ROWS, WIDTH], gl.float32, ACC)
        m = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, LAYOUT))
        l = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, LAYOUT))
        q_tile = q_tiles.index(c).reshape([ROWS, WIDTH])

        for _ in range(end, all_tiles):  # keys that only the rows of later consumers see
            stage = count % STAGES
            phase = (count // STAGES) & 1
            mbarrier.wait(k_ready.index(stage), phase)
            mbarrier.arrive(k_free.index(stage))
            mbarrier.wait(v_ready.index(stage), phase)
            mbarrier.arrive(v_free.index(stage))
            count += 1

        # The last tile of keys first: it alone is masked in full attention.
        stage = count % STAGES
        mbarrier.wait(q_ready.index(c), step & 1)
        mbarrier.wait(k_ready.index(stage), (count // STAGES) & 1)
        if OVERLAP:
            mbarrier.wait(turn.index(c), (count & 1) ^ (1 if c == 0 else 0))
        k_tile = k_tiles.index(stage).reshape([BLOCK_N, WIDTH])
        empty = gl.zeros([ROWS, BLOCK_N], gl.float32, LAYOUT)
        scores = warpgroup_mma(q_tile, k_tile.permute([1, 0]), empty, use_acc=False, is_async=True)
        if OVERLAP:
            mbarrier.arrive(turn.index(1 - c))
        scores = warpgroup_mma_wait(0, deps=[scores])
        mbarrier.arrive(k_free.index(stage))
        p, m, l, _ = _softmax(
            scores, m, l, row, (end - 1) * BLOCK_N, keys, offset, scale, True, CAUSAL
        )
        p = gl.convert_layout(p.to(out.dtype), LEFT)
        count += 1
        mbarrier.wait(k_ready.index(count % STAGES), (count // STAGES) & 1, pred=end > 1)

        free = gl.minimum(free, end - 1)
        if CAUSAL:
            acc, p, l, m, count = _consume_tiles(
                acc, p, l, m, count, end - 2, free, q_tile, k_tiles, v_tiles,
                k_ready, k_free, v_ready, v_free, turn, row, keys, offset, scale,
                c, CONSUMERS, True, CAUSAL,
            )  # fmt: skip
        acc, p, l, m, count = _consume_tiles(
            acc, p, l, m, count, free - 1, 0, q_tile, k_tiles, v_tiles,
            k_ready, k_free, v_ready, v_free, turn, row, keys, offset, scale,
            c, CONSUMERS, False, CAUSAL,
        )  # fmt: skip
        mbarrier.arrive(q_free.index(c))

        stage = (count - 1) % STAGES
        mbarrier.wait(v_ready.index(stage), ((count - 1) // STAGES) & 1)
        v_tile = v_tiles.index(stage).reshape([BLOCK_N, WIDTH])
        acc = warpgroup_mma(p, v_tile, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_free.index(stage))

        if LSE:
            value = (m * scale + gl.log2(l)) * 0.6931471805599453
            gl.store(lse + index.to(gl.int64) * queries + row, value, mask=row < queries)
        acc = acc * gl.convert_layout(1.0 / l, gl.SliceLayout(1, ACC))[:, None]
        # The copy engine writes the tile, and leaves out what lies beyond the last row, while this
        # consumer goes on; it must have read the tile before it.
        o_tile = o_tiles.index(c)
        tma.store_wait(0)
        o_tile.reshape([ROWS, WIDTH]).store(acc.to(out.dtype))
        fence_async_shared()
        coordinates = [index // query_heads, index % query_heads, first, 0]
        tma.async_copy_shared_to_global(out, coordinates, o_tile)
    tma.store_wait(0)


# Lengths and counts are not specialized: one binary serves them all.
@gluon.jit(do_not_specialize=["query_heads", "kv_heads", "queries", "keys", "heads"])
def attention_prefill_hopper_kernel(
    q, k, v, out, lse,
    query_heads, kv_heads, queries, keys, heads, scale,
    CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
    CAUSAL: gl.constexpr, FOLDED: gl.constexpr, LSE: gl.constexpr,
):  # fmt: skip
    """A program for each SM; it computes tiles of 64 · CONSUMERS rows until none are left."""
    BLOCK_N: gl.constexpr = k.block_type.shape[2]
    WIDTH: gl.constexpr = k.block_type.shape[3]
    q_tiles = gl.allocate_shared_memory(q.dtype, [CONSUMERS, 1, 1, ROWS, WIDTH], q.layout)
    k_tiles = gl.allocate_shared_memory(k.dtype, [STAGES, 1, 1, BLOCK_N, WIDTH], k.layout)
    v_tiles = gl.allocate_shared_memory(v.dtype, [STAGES, 1, 1, BLOCK_N, WIDTH], v.layout)
    o_tiles = gl.allocate_shared_memory(q.dtype, [CONSUMERS, 1, 1, ROWS, WIDTH], q.layout)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    q_ready = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], BARRIER)
    q_free = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], BARRIER)
    turn = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], BARRIER)
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    for i in gl.static_range(CONSUMERS):
        mbarrier.init(q_ready.index(i), count=1)
        mbarrier.init(q_free.index(i), count=1)
        mbarrier.init(turn.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(i), count=1)
        mbarrier.init(v_ready.index(i), count=1)
        mbarrier.init(k_free.index(i), count=CONSUMERS)
        mbarrier.init(v_free.index(i), count=CONSUMERS)
    fence_async_shared()  # the copy engine must see initialized barriers
    barriers = (q_ready, q_free, k_ready, k_free, v_ready, v_free)
    produce = (q, k, v, q_tiles, k_tiles, v_tiles, query_heads, kv_heads, queries, keys, heads)
    consume = (q_tiles, k_tiles, v_tiles, o_tiles, turn, out, query_heads, queries, keys, heads)
    # Registers are dealt out as well: what the producer gives up, the consumers get.
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (_consume, (consume, barriers, lse, scale, 0, CONSUMERS, CAUSAL, FOLDED, LSE)),
                (_consume, (consume, barriers, lse, scale, 1, CONSUMERS, CAUSAL, FOLDED, LSE)),
                (_produce, (produce, barriers, CONSUMERS, CAUSAL, FOLDED)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (consume, barriers, lse, scale, 0, CONSUMERS, CAUSAL, FOLDED, LSE)),
                (_consume, (consume, barriers, lse, scale, 1, CONSUMERS, CAUSAL, FOLDED, LSE)),
                (_consume, (consume, barriers, lse, scale, 2, CONSUMERS, CAUSAL, FOLDED, LSE)),
                (_produce, (produce, barriers, CONSUMERS, CAUSAL, FOLDED)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )


def roles(width: int) -> tuple[int, int]:
    """(consumers, stages of keys and of values) for a padded head dimension of 64 or 128."""
    return (2, 2) if width == 128 else (3, 3)


def layout(rows: int, width: int, dtype: torch.dtype):
    """How a tile lies in shared memory: as the copy engine writes it and the tensor cores read."""
    element = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}[dtype]
    return gl.NVMMASharedLayout.get_default_for([1, 1, rows, width], element)


def programs(tiles: int, heads: int, folded: bool) -> int:
    """How many programs: one for each SM, or one fewer where rounds would repeat a pattern.

    With an odd number of tiles a head, folded pairs are not all equal and the pattern repeats after
    `tiles` pairs: 132 programs and 11 tiles would give some programs the long pair every round.
    """
    sms = min(backend.sms(), tiles * heads)
    return sms - 1 if folded and sms > 1 and tiles % 2 and sms % tiles == 0 else sms


def launch(q, k, v, out, lse, causal: bool, scale: float):
    """Launch the kernel on what `attention_prefill` has found it can take; `scale` has log2(e)."""
    batch, query_heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    width = triton.next_power_of_2(head_dim)
    consumers, stages = roles(width)
    described = [
        TensorDescriptor(
            x, list(x.shape), list(x.stride()), [1, 1, rows, width], layout(rows, width, x.dtype)
        )
        for x, rows in ((q, ROWS.value), (k, KEYS), (v, KEYS), (out, ROWS.value))
    ]
    heads = batch * query_heads
    tiles = triton.cdiv(queries, consumers * ROWS.value)
    folded = causal and 2 * batch * kv_heads * keys * head_dim * k.element_size() > IN_L2
    attention_prefill_hopper_kernel[(programs(tiles, heads, folded),)](
        *described,
        lse,
        query_heads,
        kv_heads,
        queries,
        keys,
        heads,
        scale,
        CONSUMERS=consumers,
        STAGES=stages,
        CAUSAL=causal,
        FOLDED=folded,
        LSE=lse is not None,
        num_warps=4,
    )

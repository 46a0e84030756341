"""Right answers of lab 04 unlike its solution: other tiles, grids, formulas and partial results."""

OTHER_ROADS = {
    # Loads and products of 32 keys, a grid of one dimension, no tl.dot, powers of 2, no `else`.
    "lab04_task2": """
@triton.jit
def part_kernel(q, k, v, lengths, out, lse, capacity, kv_heads, group, splits, ROWS: tl.constexpr):
    split = tl.program_id(0) % splits
    pair = tl.program_id(0) // splits  # of a sequence and a KV head
    length = tl.load(lengths + pair // kv_heads)
    tiles = (length + 63) // 64
    each = (tiles + splits - 1) // splits
    begin, end = split * each * 64, tl.minimum((split + 1) * each * 64, length)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, 64)
    at = (pair * group + row) * splits + split
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, 64], tl.float32)
    if begin < end:
        q_at = (pair * group + row)[:, None] * 64 + column[None, :]
        queries = tl.load(q + q_at, mask=row[:, None] < group, other=0.0).to(tl.float32)
        queries *= 1.4426950408889634 / 8
        for start in range(begin, end, 32):
            key = start + tl.arange(0, 32)
            kv_at = (pair * capacity + key)[:, None] * 64 + column[None, :]
            inside = (key < end)[:, None]
            keys = tl.load(k + kv_at, mask=inside, other=0.0).to(tl.float32)
            scores = tl.sum(queries[:, None, :] * keys[None, :, :], axis=2)
            scores = tl.where(key[None, :] < end, scores, -float("inf"))
            higher = tl.maximum(top, tl.max(scores, axis=1))
            weights = tl.exp2(scores - higher[:, None])
            values = tl.load(v + kv_at, mask=inside, other=0.0).to(tl.float32)
            acc *= tl.exp2(top - higher)[:, None]
            acc += tl.sum(weights[:, :, None] * values[None, :, :], axis=1)
            total = total * tl.exp2(top - higher) + tl.sum(weights, axis=1)
            top = higher
        there = (row < group)[:, None]
        tl.store(out + at[:, None] * 64 + column[None, :], acc / total[:, None], mask=there)
    tl.store(lse + at, (top + tl.log2(total)) * 0.6931471805599453, mask=row < group)


def attend_to_split(q, k, v, lengths, splits):
    batch, heads, _ = q.shape
    kv_heads, capacity = k.shape[1], k.shape[2]
    group = heads // kv_heads
    out = q.new_empty((batch, heads, splits, 64), dtype=torch.float32)
    lse = q.new_empty((batch, heads, splits), dtype=torch.float32)
    grid = (batch * kv_heads * splits,)
    rows = triton.next_power_of_2(group)
    part_kernel[grid](q, k, v, lengths, out, lse, capacity, kv_heads, group, splits, ROWS=rows)
    return out, lse
""",
    # One split after the other, with a running maximum, as in tiled attention.
    "lab04_task3": """
@triton.jit
def running_merge_kernel(partial, lse, out, splits):
    row = tl.program_id(0)
    column = tl.arange(0, 64)
    top = float("-inf")
    total = 0.0
    acc = tl.zeros([64], tl.float32)
    for split in range(0, splits):
        place = row * splits + split
        log = tl.load(lse + place)
        if log > float("-inf"):
            new = tl.maximum(top, log)
            weight = tl.exp(log - new)
            acc = acc * tl.exp(top - new) + weight * tl.load(partial + place * 64 + column)
            total = total * tl.exp(top - new) + weight
            top = new
    if total == 0.0:
        tl.store(out + row * 64 + column, acc)
    else:
        tl.store(out + row * 64 + column, acc / total)


def merge(out, lse):
    merged = out.new_empty((*lse.shape[:2], 64))
    running_merge_kernel[(lse.shape[0] * lse.shape[1],)](out, lse, merged, lse.shape[2])
    return merged
""",
    "lab04_task4": """
def launch_time(lengths, kv_heads, splits, sms):
    programs = []
    for length in lengths:
        for head in range(kv_heads):
            for split in range(splits):
                begin, end = bounds(length, split, splits)
                if begin < end:
                    programs.append(2 + cdiv(end - begin, 64))
    merging = 0 if splits == 1 else 4 + splits // 16
    return finish(programs, sms) + merging


def choose_splits(lengths, kv_heads, sms):
    best, least = 1, launch_time(lengths, kv_heads, 1, sms)
    for splits in range(2, 1 + min(128, max(cdiv(length, 64) for length in lengths))):
        time = launch_time(lengths, kv_heads, splits, sms)
        if time < least:
            best, least = splits, time
    return best
""",
    # Parts of every splits-th tile; maximum, sum and index side by side; one merging program.
    "lab04_task5": """
@triton.jit
def strided_kernel(
    hidden, weight, numbers, indices, rows, vocabulary, splits, ROWS: tl.constexpr, N: tl.constexpr
):
    split = tl.program_id(0)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, 64)
    at = row[:, None] * 64 + column[None, :]
    states = tl.load(hidden + at, mask=row[:, None] < rows, other=0.0)
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    best = tl.zeros([ROWS], tl.int32)
    for start in range(split * N, vocabulary, splits * N):
        token = start + tl.arange(0, N)
        tile_at = token[:, None] * 64 + column[None, :]
        tile = tl.load(weight + tile_at, mask=token[:, None] < vocabulary, other=0.0)
        logits = tl.dot(states, tl.trans(tile), input_precision="ieee")
        logits = tl.where(token[None, :] < vocabulary, logits, -1e30)
        new = tl.maximum(top, tl.max(logits, axis=1))
        best = tl.where(new > top, start + tl.argmax(logits, axis=1), best)
        weights = tl.where(token[None, :] < vocabulary, tl.exp(logits - new[:, None]), 0.0)
        total = total * tl.exp(top - new) + tl.sum(weights, axis=1)
        top = new
    place = split * rows + row
    tl.store(numbers + 2 * place, top, mask=row < rows)
    tl.store(numbers + 2 * place + 1, total, mask=row < rows)
    tl.store(indices + place, best, mask=row < rows)


@triton.jit
def gather_kernel(numbers, indices, ids, lse, rows, splits, ROWS: tl.constexpr):
    row = tl.arange(0, ROWS)
    mask = row < rows
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    best = tl.zeros([ROWS], tl.int64)
    for split in range(0, splits):
        place = split * rows + row
        one = tl.load(numbers + 2 * place, mask=mask, other=0.0)
        part = tl.load(numbers + 2 * place + 1, mask=mask, other=0.0)
        best = tl.where(one > top, tl.load(indices + place, mask=mask, other=0), best)
        new = tl.maximum(top, one)
        total = total * tl.exp(top - new) + part * tl.exp(one - new)
        top = new
    tl.store(ids + row, best, mask=mask)
    tl.store(lse + row, top + tl.log(total), mask=mask)


def next_token(hidden, weight, splits):
    rows = len(hidden)
    numbers = hidden.new_empty((splits, rows, 2), dtype=torch.float32)
    indices = hidden.new_empty((splits, rows), dtype=torch.int64)
    grid = (splits,)
    strided_kernel[grid](hidden, weight, numbers, indices, rows, len(weight), splits, ROWS=16, N=32)
    ids = hidden.new_empty(rows, dtype=torch.int64)
    lse = hidden.new_empty(rows, dtype=torch.float32)
    gather_kernel[(1,)](numbers, indices, ids, lse, rows, splits, ROWS=16)
    return ids, lse
""",
}

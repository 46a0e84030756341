"""Fills the partial results before the kernel writes them.

cell: lab04_task5
points: 8
says: PyTorch fills memory before your kernels do
"""

import torch
import triton
import triton.language as tl


@triton.jit
def vocabulary_kernel(
    hidden, weight, part_largest, part_lse, part_best, rows, vocabulary, splits,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0)
    each = tl.cdiv(tl.cdiv(vocabulary, BLOCK_N), splits) * BLOCK_N
    begin = split * each
    end = tl.minimum(begin + each, vocabulary)
    row = tl.arange(0, BLOCK_M)
    column = tl.arange(0, 64)
    states_at = row[:, None] * 64 + column[None, :]
    states = tl.load(hidden + states_at, mask=row[:, None] < rows, other=0.0)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    best = tl.zeros([BLOCK_M], tl.int32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for start in range(begin, end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        weights_at = token[:, None] * 64 + column[None, :]
        weights = tl.load(weight + weights_at, mask=token[:, None] < end, other=0.0)
        logits = tl.dot(states, tl.trans(weights), input_precision="ieee")
        logits = tl.where(token[None, :] < end, logits, float("-inf"))
        highest = tl.max(logits, axis=1)
        best = tl.where(highest > largest, start + tl.argmax(logits, axis=1), best)
        new = tl.maximum(largest, highest)
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(logits - new[:, None]), axis=1)
        largest = new
    place = row * splits + split
    tl.store(part_largest + place, largest, mask=row < rows)
    tl.store(part_lse + place, largest + tl.log(total), mask=row < rows)  # -inf without tokens
    tl.store(part_best + place, best, mask=row < rows)


@triton.jit
def vocabulary_merge_kernel(
    part_largest, part_lse, part_best, ids, lse, splits, SPLITS: tl.constexpr
):
    row = tl.program_id(0)
    split = tl.arange(0, SPLITS)
    place = row * splits + split
    largest = tl.load(part_largest + place, mask=split < splits, other=float("-inf"))
    log = tl.load(part_lse + place, mask=split < splits, other=float("-inf"))
    winner = tl.argmax(largest, axis=0)
    tl.store(ids + row, tl.load(part_best + row * splits + winner))
    top = tl.max(log, axis=0)
    tl.store(lse + row, top + tl.log(tl.sum(tl.exp(log - top), axis=0)))


def next_token(hidden, weight, splits):
    """hidden [rows, 64], weight [vocabulary, 64] -> (ids int64 [rows], lse fp32 [rows])."""
    rows, vocabulary = hidden.shape[0], weight.shape[0]
    largest = torch.full((rows, splits), float("-inf"), device=hidden.device)
    partial_lse = torch.zeros_like(largest)
    best = torch.empty(rows, splits, dtype=torch.int32, device=hidden.device)
    vocabulary_kernel[(splits,)](
        hidden, weight, largest, partial_lse, best, rows, vocabulary, splits, BLOCK_M=16, BLOCK_N=64
    )
    ids = torch.empty(rows, dtype=torch.int64, device=hidden.device)
    lse = torch.empty(rows, dtype=torch.float32, device=hidden.device)
    vocabulary_merge_kernel[(rows,)](
        largest, partial_lse, best, ids, lse, splits, SPLITS=triton.next_power_of_2(splits)
    )
    return ids, lse

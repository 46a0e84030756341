"""Launches a program for each split, and then streams all of the vocabulary in one.

cell: lab04_task5
points: 8
says: is it the first that streams the vocabulary?
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
def zero_kernel(numbers):
    tl.store(numbers + tl.program_id(0), 0.0)


def next_token(hidden, weight, splits):
    rows, vocabulary = hidden.shape[0], weight.shape[0]
    largest = torch.empty(rows, splits, dtype=torch.float32, device=hidden.device)
    zero_kernel[(splits,)](largest)
    ids = torch.empty(rows, dtype=torch.int64, device=hidden.device)
    lse = torch.empty(rows, dtype=torch.float32, device=hidden.device)
    vocabulary_kernel[(1,)](
        hidden, weight, largest, lse, ids, rows, vocabulary, 1, BLOCK_M=16, BLOCK_N=64
    )
    return ids, lse

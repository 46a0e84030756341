"""One program a row, so that every row reads all weights.

cell: lab03_task5
points: 9
says: Give a program a tile of rows
"""

import torch
import triton
import triton.language as tl


@triton.jit
def next_token_kernel(
    hidden, weight, ids, lse, rows, vocabulary, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    row = tl.program_id(0) + rows * tl.arange(0, BLOCK_M)
    column = tl.arange(0, 64)
    states_at = row[:, None] * 64 + column[None, :]
    states = tl.load(hidden + states_at, mask=row[:, None] < rows, other=0.0)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    best = tl.zeros([BLOCK_M], tl.int32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, vocabulary, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        weights_at = token[:, None] * 64 + column[None, :]
        weights = tl.load(weight + weights_at, mask=token[:, None] < vocabulary, other=0.0)
        logits = tl.dot(states, tl.trans(weights), input_precision="ieee")
        logits = tl.where(token[None, :] < vocabulary, logits, float("-inf"))
        highest = tl.max(logits, axis=1)
        best = tl.where(highest > largest, start + tl.argmax(logits, axis=1), best)
        new = tl.maximum(largest, highest)
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(logits - new[:, None]), axis=1)
        largest = new
    tl.store(ids + row, best, mask=row < rows)
    tl.store(lse + row, largest + tl.log(total), mask=row < rows)


def next_token(hidden, weight):
    """hidden [rows, 64], weight [vocabulary, 64] -> (ids int64 [rows], lse fp32 [rows])."""
    rows = hidden.shape[0]
    ids = torch.empty(rows, dtype=torch.int64, device=hidden.device)
    lse = torch.empty(rows, dtype=torch.float32, device=hidden.device)
    next_token_kernel[(rows,)](
        hidden, weight, ids, lse, rows, weight.shape[0], BLOCK_M=16, BLOCK_N=64
    )
    return ids, lse

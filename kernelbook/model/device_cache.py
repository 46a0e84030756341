"""What caches of decode share: lengths that stay on the device, and where a token's KV goes.

Nothing here reads the device. A captured graph therefore follows `lengths` as they grow between
replays, and the host keeps count by itself, to say so when a cache is full.
"""

from contextlib import contextmanager

import torch


class DeviceCache:
    """Lengths of a batch of sequences, each its own. A layout adds `write` and `read`.

    lengths  int32 [B] on the device: tokens of each sequence that are filled
    counted  the host's count of the same, a list
    prefix   tokens in front of these, the same in all sequences (`SharedPrefixCache`)
    """

    prefix = 0

    def __init__(self, batch: int, capacity: int, device):
        self.capacity = capacity
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        self.counted = [0] * batch

    def positions(self, tokens: int) -> torch.Tensor:
        """Positions [B, S] of the next tokens, from device memory; ValueError if the cache is full.

        What all layers need is made here, once a step: places in the cache, and new lengths.
        """
        self.check_room(tokens)
        steps = torch.arange(tokens, device=self.lengths.device)
        places = self.lengths[:, None] + steps  # [B, S], int64
        self.address = self.address_of(places)
        self.ends = self.lengths + tokens
        return places + self.prefix if self.prefix else places

    def attend(self, layer: int, q, k, v, scale: float, functions) -> torch.Tensor:
        """Write k and v [B, Hkv, S, D]; attention of q to each sequence's tokens so far.

        A prompt at the start attends to itself alone: prefill, the model's own attention.
        """
        self.write(layer, k, v)
        if not any(self.counted):
            return functions.attention(q, k, v, causal=True, scale=scale)
        return self.read(layer, q, scale)

    def advance(self, tokens: int):
        """Count `tokens` as filled in every sequence, on the device and on the host."""
        self.lengths += tokens
        self.count(tokens)

    def count(self, tokens: int):
        """The host's half of `advance`: what a replay, which runs on the device alone, needs."""
        self.counted = [length + tokens for length in self.counted]

    def check_room(self, tokens: int):
        """ValueError unless every sequence can take `tokens` more."""
        needed = self.prefix + max(self.counted) + tokens
        if needed > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens, {needed} are needed")

    def set_lengths(self, lengths: list[int]):
        """Say how many tokens of each sequence count; what lies behind them is overwritten.

        So prompts of several lengths are read together: padded on the right, then cut.
        """
        if len(lengths) != len(self.counted):
            raise ValueError(f"one length for each of {len(self.counted)} sequences, got {lengths}")
        most = self.capacity - self.prefix
        if min(lengths) < 0 or max(lengths) > most:
            raise ValueError(f"lengths must be from 0 to {most}, got {lengths}")
        self.counted = list(lengths)
        self.lengths.copy_(torch.tensor(lengths, dtype=torch.int32))

    @contextmanager
    def undone(self):
        """Steps inside leave lengths as they were; the next step overwrites what they wrote."""
        lengths, counted = self.lengths.clone(), self.counted
        try:
            yield self
        finally:
            self.lengths.copy_(lengths)
            self.counted = counted

"""The KV cache in its simplest layout: one contiguous buffer a layer, allocated once."""

import torch

from kernelbook.model.config import LlamaConfig


class KVCache:
    """Keys and values of all tokens so far, k and v [layers, B, Hkv, capacity, D].

    `length` tokens are filled. A step's layers all write behind `length`, then the model calls
    `advance` once. Attention gets views of the filled part: no copy, strides of the full buffer.
    """

    def __init__(self, config: LlamaConfig, batch: int, capacity: int, dtype, device):
        shape = (config.layers, batch, config.kv_heads, capacity, config.head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.length = 0

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.k.shape[3]

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor):
        """Write k and v [B, Hkv, S, D] behind the filled part; return all keys and values."""
        end = self.length + k.shape[2]
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens, {end} are needed")
        self.k[layer, :, :, self.length : end] = k
        self.v[layer, :, :, self.length : end] = v
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]

    def advance(self, tokens: int):
        """Count `tokens` as filled, after every layer has appended them."""
        self.length += tokens

"""The KV cache in its simplest layout: one contiguous buffer a layer, its length on the host.

A cache says how keys and values are kept *and* attended to. The model asks three things of it:

    cache.positions(tokens)  rows of the rotary tables for the next tokens: a slice, or [B, S]
    cache.attend(layer, q, k, v, scale, functions)  append k and v, attend to all there is
    cache.advance(tokens)    count them as filled, once all layers have written

`decode_caches` has those whose lengths are on the device, for decode kernels and captured graphs.
"""

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

    def positions(self, tokens: int) -> slice:
        """Positions of the next `tokens` tokens, the same in all sequences."""
        return slice(self.length, self.length + tokens)

    def attend(self, layer: int, q, k, v, scale: float, functions) -> torch.Tensor:
        """Append k and v [B, Hkv, S, D]; the model's attention of q to all keys so far."""
        k, v = self.append(layer, k, v)  # [B, Hkv, all tokens, D]
        return functions.attention(q, k, v, causal=True, scale=scale)

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

"""Caches for decode: contiguous, paged, quantized, with a shared prefix.

All are made alike, `Cache(config, batch, capacity, dtype, device)`, and know their own attention:
`attention=` takes the kernel (default) or its plain `reference`, which is faster without a GPU.

A token's keys and values lie at (block, slot): block and slot are the sequence and the position in
a contiguous cache, a page and a place in it in a paged one. All else is the same.
"""

import torch

from kernelbook.kernels.attention_cascade import attention_cascade
from kernelbook.kernels.attention_decode import attention_decode
from kernelbook.kernels.attention_paged import attention_paged
from kernelbook.kernels.attention_quantized import attention_quantized
from kernelbook.kernels.kv_quantize import kv_quantize
from kernelbook.model.config import LlamaConfig
from kernelbook.model.device_cache import DeviceCache


class SplitCache(DeviceCache):
    """Contiguous KV, one block a sequence: k and v [layers, B, Hkv, capacity, D].

    attention  (q, k, v, lengths=, causal=, scale=): `attention_decode` or its `reference`
    """

    takes_trees = True  # k and v are all there is: `speculative` may attend to them itself

    def __init__(
        self, config: LlamaConfig, batch, capacity, dtype, device, attention=attention_decode
    ):
        super().__init__(batch, capacity, device)
        self.attention = attention
        self.sequence = torch.arange(batch, device=device)[:, None]  # [B, 1]
        self.allocate(config, batch, capacity, dtype, device)

    def allocate(self, config: LlamaConfig, blocks: int, slots: int, dtype, device):
        """Zeros for `blocks` blocks of `slots` tokens in each layer."""
        shape = (config.layers, blocks, config.kv_heads, slots, config.head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)

    def address_of(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Block and slot of the tokens at `places` [B, S] of their sequences."""
        return self.sequence, places

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor):
        """Put k and v [B, Hkv, S, D] where the step's tokens belong."""
        block, slot = self.address
        self.k[layer][block, :, slot] = k.transpose(1, 2)  # [B, S, Hkv, D]
        self.v[layer][block, :, slot] = v.transpose(1, 2)

    def kv(self, layer: int):
        """Keys, values and block table (None: contiguous) of a layer, as kernels take them."""
        return self.k[layer], self.v[layer], None

    def read(self, layer: int, q: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention of the step's queries [B, Hq, S, D], causal, each sequence to its length."""
        k, v, _ = self.kv(layer)
        return self.attention(q, k, v, lengths=self.ends, causal=True, scale=scale)

    def move(self, source: torch.Tensor, target: torch.Tensor):
        """Copy the tokens at places `source` [B, S] to `target` [B, S], in all layers."""
        (from_block, from_slot), (block, slot) = map(self.address_of, (source, target))
        for x in (self.k, self.v):
            x[:, block, :, slot] = x[:, from_block, :, from_slot]  # the right side is a copy


class PagedCache(SplitCache):
    """KV on pages of a pool, [layers, pages, Hkv, page_size, D], found through a block table.

    table    int32 [B, pages a sequence]; with `shuffle` in random order (of `seed`), so that
             nothing rests on neighbors, else in order
    attention  (q, k, v, block_table, lengths=, causal=, scale=): `attention_paged` or `reference`
    """

    def __init__(
        self, config: LlamaConfig, batch, capacity, dtype, device, attention=attention_paged,
        page_size: int = 16, shuffle: bool = True, seed: int = 0,
    ):  # fmt: skip
        pages = -(-capacity // page_size)  # a sequence; its last page may be partly used
        numbers = torch.arange(batch * pages)
        if shuffle:
            numbers = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(seed))
        self.page_size = page_size
        self.table = numbers.view(batch, pages).to(device, torch.int32)
        super().__init__(config, batch, capacity, dtype, device, attention)

    def allocate(self, config: LlamaConfig, blocks: int, slots: int, dtype, device):
        """A pool with room for every sequence; blocks are pages."""
        super().allocate(config, self.table.numel(), self.page_size, dtype, device)

    def address_of(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Page and place in it."""
        return self.table.gather(1, places // self.page_size).long(), places % self.page_size

    def kv(self, layer: int):
        """The layer's pools, and the table that all layers share."""
        return self.k[layer], self.v[layer], self.table

    def read(self, layer: int, q: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention through the block table."""
        k, v, table = self.kv(layer)
        return self.attention(q, k, v, table, lengths=self.ends, causal=True, scale=scale)


class QuantizedCache(SplitCache):
    """Contiguous KV in 8 bits, one scale for each token and head: changes what the model says.

    to         torch.int8 or torch.float8_e4m3fn
    attention  `attention_quantized` or its `reference`
    quantize   `kv_quantize` or its `reference`, (x, dtype) -> codes, scales
    """

    takes_trees = False  # codes mean nothing without their scales

    def __init__(
        self, config: LlamaConfig, batch, capacity, dtype, device, attention=attention_quantized,
        quantize=kv_quantize, to: torch.dtype = torch.int8,
    ):  # fmt: skip
        self.to, self.quantize = to, quantize
        super().__init__(config, batch, capacity, dtype, device, attention)

    def allocate(self, config: LlamaConfig, blocks: int, slots: int, dtype, device):
        """Codes instead of numbers, and scales fp32 [layers, B, Hkv, capacity]."""
        super().allocate(config, blocks, slots, self.to, device)
        self.k_scale = torch.ones(self.k.shape[:-1], dtype=torch.float32, device=device)
        self.v_scale = torch.ones_like(self.k_scale)

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor):
        """Quantize, then put codes and scales where the step's tokens belong."""
        block, slot = self.address
        for x, codes, scales in ((k, self.k, self.k_scale), (v, self.v, self.v_scale)):
            new, scale = self.quantize(x, self.to)
            # as plain bytes: PyTorch cannot index fp8
            new = new.view(torch.uint8).transpose(1, 2)
            codes[layer].view(torch.uint8)[block, :, slot] = new
            scales[layer][block, :, slot] = scale.transpose(1, 2)

    def read(self, layer: int, q: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention to the codes, dequantized on the way."""
        codes = self.k[layer], self.v[layer], self.k_scale[layer], self.v_scale[layer]
        return self.attention(q, *codes, lengths=self.ends, causal=True, scale=scale)

    def move(self, source: torch.Tensor, target: torch.Tensor):
        """Not here: `attention_tree`, which needs it, takes no codes."""
        raise NotImplementedError("a tree of drafts is verified on SplitCache or PagedCache")


class SharedPrefixCache(SplitCache):
    """KV of what all sequences begin with, kept and read once; behind it each sequence's own.

    The first tokens it sees are the prefix and come as one sequence: `model(prefix[None], cache)`.
    Then follow the rests of the prompts, [B, S]. `lengths` count what is behind the prefix.

    attention  (q, prefix_k, prefix_v, k, v, lengths, scale=): `attention_cascade` or `reference`
    """

    takes_trees = False  # the prefix lies elsewhere

    def __init__(
        self, config: LlamaConfig, batch, capacity, dtype, device, attention=attention_cascade
    ):
        super().__init__(config, batch, capacity, dtype, device, attention)
        self.prefix_k, self.prefix_v = [None] * config.layers, [None] * config.layers

    def positions(self, tokens: int):
        """The first tokens are the prefix; all later ones follow it."""
        if not self.prefix:
            return slice(0, tokens)
        return super().positions(tokens)

    def attend(self, layer: int, q, k, v, scale: float, functions) -> torch.Tensor:
        """Keep the prefix [1, Hkv, P, D]; or write, and attend to prefix and own tokens."""
        if not self.prefix:
            return self.keep_prefix(layer, q, k, v, scale, functions)
        self.write(layer, k, v)
        if q.shape[2] == 1:
            prefix = self.prefix_k[layer], self.prefix_v[layer]
            return self.attention(q, *prefix, *self.kv(layer)[:2], self.ends, scale=scale)
        return functions.attention(q, *self.whole(layer, k, v), causal=True, scale=scale)

    def keep_prefix(self, layer: int, q, k, v, scale: float, functions) -> torch.Tensor:
        """Prefill of the prefix; ValueError unless it is one sequence that leaves room."""
        if len(q) != 1:
            raise ValueError(f"the prefix comes first, as one sequence, got {len(q)} sequences")
        if q.shape[2] >= self.capacity:
            raise ValueError(f"a prefix of {q.shape[2]} tokens fills a cache of {self.capacity}")
        self.prefix_k[layer], self.prefix_v[layer] = k[0].clone(), v[0].clone()
        return functions.attention(q, k, v, causal=True, scale=scale)

    def whole(self, layer: int, k: torch.Tensor, v: torch.Tensor):
        """Prefix and new tokens in one, to read the rests of the prompts: not kept."""
        if any(self.counted):
            raise ValueError("behind the first rest of the prompts, tokens come one at a time")
        prefix = self.prefix_k[layer], self.prefix_v[layer]
        pairs = zip(prefix, (k, v), strict=True)
        return [torch.cat((p.expand(len(x), -1, -1, -1), x), dim=2) for p, x in pairs]

    def advance(self, tokens: int):
        """Count the prefix once, later tokens in every sequence."""
        if self.prefix:
            return super().advance(tokens)
        self.prefix = tokens
        # what the prefix takes, no sequence needs
        self.k, self.v = (x[..., : self.capacity - tokens, :].clone() for x in (self.k, self.v))

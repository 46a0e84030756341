"""A Llama in plain PyTorch whose attention, norm and MLP can be swapped, one at a time.

    with model.using(attention=tiled_attention):
        logits = model(tokens)

Modules carry the names of Hugging Face's files, so weights load by name.
Source: Touvron et al., Llama 2, 2023; Dubey et al., The Llama 3 Herd of Models, 2024.
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from kernelbook.model import rope
from kernelbook.model.attention import plain_attention
from kernelbook.model.cache import KVCache
from kernelbook.model.config import LlamaConfig

RESERVED = 8192  # positions that a new model has rotary tables for: 2 MB at head_dim 64 in bf16


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, the statistic in fp32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor):
    """(silu(x gateᵀ) · x upᵀ) downᵀ; gate and up [I, H], down [H, I] (Shazeer, 2020)."""
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


@dataclass(frozen=True)
class Functions:
    """What a chapter swaps. Each replacement takes and returns exactly what its default does."""

    attention: Callable = plain_attention  # (q, k, v, causal=, scale=) -> like q
    norm: Callable = rms_norm  # (x, weight, eps) -> like x
    mlp: Callable = swiglu  # (x, gate, up, down) -> like x


class Norm(nn.Module):
    """The weight of an RMSNorm, [hidden]; the arithmetic is `Functions.norm`."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden))
        self.eps = config.eps

    def forward(self, x, functions: Functions):
        return functions.norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Project to heads, rotate, attend to the tokens or to all in the cache, project back."""

    def __init__(self, config: LlamaConfig, layer: int):
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.hidden, query, bias=bias)
        self.k_proj = nn.Linear(config.hidden, kv, bias=bias)
        self.v_proj = nn.Linear(config.hidden, kv, bias=bias)
        self.o_proj = nn.Linear(query, config.hidden, bias=bias)

    def forward(self, x, cos, sin, cache: KVCache | None, functions: Functions):
        q = rope.rotate(self._heads(self.q_proj(x)), cos, sin)  # [B, Hq, S, D]
        k = rope.rotate(self._heads(self.k_proj(x)), cos, sin)  # [B, Hkv, S, D]
        v = self._heads(self.v_proj(x))
        scale = self.head_dim**-0.5
        if cache is None:
            out = functions.attention(q, k, v, causal=True, scale=scale)
        else:
            out = cache.attend(self.layer, q, k, v, scale, functions)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _heads(self, x):
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, S, H·D] -> [B, H, S, D]


class MLP(nn.Module):
    """Weights of a SwiGLU block; the arithmetic is `Functions.mlp`."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x, functions: Functions):
        weights = (self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)
        return functions.mlp(x, *weights)


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: LlamaConfig, layer: int):
        super().__init__()
        self.input_layernorm = Norm(config)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = Norm(config)
        self.mlp = MLP(config)

    def forward(self, x, cos, sin, cache: KVCache | None, functions: Functions):
        x = x + self.self_attn(self.input_layernorm(x, functions), cos, sin, cache, functions)
        return x + self.mlp(self.post_attention_layernorm(x, functions), functions)


class Llama(nn.Module):
    """Tokens [B, S] to logits [B, S, vocab]; `functions` says how each block is computed."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.config = config
        self.functions = Functions()
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.layers))
        self.norm = Norm(config)
        self.lm_head = None if config.tied else nn.Linear(config.hidden, config.vocab, bias=False)
        for table in ("cos", "sin"):
            self.register_buffer(table, torch.empty(0), persistent=False)
        self.reserve(min(config.context, RESERVED))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights and of all activations."""
        return self.embed_tokens.weight.dtype

    @property
    def head(self) -> torch.Tensor:
        """Weight of the LM head, [vocab, hidden]; the embedding table where they are tied."""
        return self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    @contextmanager
    def using(self, **functions: Callable):
        """Compute with other functions inside the block: `attention=`, `norm=`, `mlp=`."""
        before = self.functions
        self.functions = replace(before, **functions)
        try:
            yield self
        finally:
            self.functions = before

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache for `batch` sequences of up to `capacity` tokens."""
        return KVCache(self.config, batch, capacity, self.dtype, self.device)

    def forward(self, tokens: torch.Tensor, cache: KVCache | None = None, last_only: bool = False):
        """Logits of `tokens` [B, S], which follow those in `cache`; [B, 1, V] if `last_only`.

        Any cache of `cache` and `decode_caches` will do: it also says how attention is computed.
        """
        length = tokens.shape[1]
        cos, sin = self._rotary(cache, length)
        x = self.embed_tokens(tokens)  # [B, S, hidden]
        for layer in self.layers:
            x = layer(x, cos, sin, cache, self.functions)
        if cache is not None:
            cache.advance(length)
        if last_only:
            x = x[:, -1:]  # the head reads vocab × hidden weights a row: 1 row instead of S
        return F.linear(self.norm(x, self.functions), self.head)

    def reserve(self, length: int):
        """Make rotary tables for positions below `length`, so that a step only views them."""
        with torch.inference_mode(False):  # so that training may use them later
            tables = rope.tables(self.config, length)
            self.cos, self.sin = (table.to(self.device, self.dtype) for table in tables)

    def _rotary(self, cache, length: int):
        """Rows of the rotary tables for the next tokens; tables double when a text outgrows them.

        A slice gives [S, D] for all sequences; a tensor [B, S], which lies on the device where the
        host does not see it, [B, 1, S, D]: each sequence's own, for all heads.
        """
        rows = slice(0, length) if cache is None else cache.positions(length)
        end = rows.stop if isinstance(rows, slice) else cache.capacity
        if len(self.cos) < end:
            self.reserve(1 << (end - 1).bit_length())
        if isinstance(rows, slice):
            return self.cos[rows], self.sin[rows]
        return self.cos[rows][:, None], self.sin[rows][:, None]

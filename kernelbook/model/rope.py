"""Rotary position embedding (Su et al., RoFormer, 2021), with the scalings Llama files use."""

import math

import torch

from kernelbook.model.config import LlamaConfig


def frequencies(config: LlamaConfig) -> torch.Tensor:
    """Radians a token for each pair of a head's elements, [head_dim / 2], float32 on the CPU.

    Pair i turns by theta^(-2i / head_dim) a token. "linear" divides all by `factor`; "llama3"
    divides those whose wavelength exceeds the original context by `factor`, leaves those with
    `high_freq_factor` or more turns in it, and blends in between.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    turns = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling or {}
    if scaling.get("rope_type") == "linear":
        return turns / scaling["factor"]
    if scaling.get("rope_type") == "llama3":
        return _llama3(turns, scaling)
    return turns


def _llama3(turns: torch.Tensor, scaling: dict) -> torch.Tensor:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = scaling["original_max_position_embeddings"]
    turns_in_context = original / (2 * math.pi / turns)
    keep = ((turns_in_context - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * turns / scaling["factor"] + keep * turns


def tables(config: LlamaConfig, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine for positions 0..length-1, each [length, head_dim], float32.

    Both halves of a row are equal: element i of a head is paired with i + head_dim / 2.
    """
    angles = torch.outer(torch.arange(length).float(), frequencies(config))
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [B, H, S, D] turned by the angles of its S rows; cos and sin [S, D] or [B, 1, S, D]."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin

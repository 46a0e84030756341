"""Shapes of public Llamas, with random weights: the speeds that matter without the download."""

import torch

from kernelbook.model.config import LlamaConfig
from kernelbook.model.llama import Llama

_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

PRESETS = {
    # Llama-3.2-1B: 1.24 billion weights, 2.5 GB in bf16
    "1b": LlamaConfig(
        vocab=128256,
        hidden=2048,
        intermediate=8192,
        layers=16,
        heads=32,
        kv_heads=8,
        head_dim=64,
        context=131072,
        rope_theta=500000.0,
        rope_scaling=_LLAMA3 | {"factor": 32.0},
        tied=True,
    ),
    # Llama-3.1-8B: 8.03 billion weights, 16 GB in bf16
    "8b": LlamaConfig(
        vocab=128256,
        hidden=4096,
        intermediate=14336,
        layers=32,
        heads=32,
        kv_heads=8,
        head_dim=128,
        context=131072,
        rope_theta=500000.0,
        rope_scaling=_LLAMA3 | {"factor": 8.0},
        tied=False,
    ),
}


def preset(name: str) -> LlamaConfig:
    """The shape called "1b" (Llama-3.2-1B) or "8b" (Llama-3.1-8B)."""
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {sorted(PRESETS)}, got {name!r}")
    return PRESETS[name]


@torch.no_grad()
def random_model(shape: str | LlamaConfig, dtype=torch.bfloat16, device="cuda", seed: int = 0):
    """A Llama of that preset or config, random weights made on `device` in `dtype`.

    Matrices are normal with standard deviation 1 / sqrt(inputs), so that activations keep their
    size through the layers; never zeros, which some kernels multiply faster.
    """
    config = preset(shape) if isinstance(shape, str) else shape
    with torch.device("meta"):
        model = Llama(config).to(dtype)
    model = model.to_empty(device=device)  # nothing ever lies in fp32 or on the host
    generator = torch.Generator(device).manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            weight.normal_(0, weight.shape[1] ** -0.5, generator=generator)
        else:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
    model.reserve(len(model.cos))
    return model.requires_grad_(False).eval()

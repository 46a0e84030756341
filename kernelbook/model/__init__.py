"""A small Llama in plain PyTorch: the model whose wastes every chapter removes."""

from kernelbook.model.attention import plain_attention, sdpa_attention
from kernelbook.model.cache import KVCache
from kernelbook.model.captured import capture
from kernelbook.model.compare import (
    half_precision,
    kv_accuracy,
    swapped_text,
    text_unchanged,
    text_with,
)
from kernelbook.model.config import LlamaConfig
from kernelbook.model.decode_caches import (
    PagedCache,
    QuantizedCache,
    SharedPrefixCache,
    SplitCache,
)
from kernelbook.model.generation import generate
from kernelbook.model.llama import Functions, Llama, rms_norm, swiglu
from kernelbook.model.loader import load
from kernelbook.model.presets import preset, random_model
from kernelbook.model.speculative import generate_drafted
from kernelbook.model.tiny import bits_per_byte, held_out_text, tiny
from kernelbook.model.tokenizer import encode, load_tokenizer

__all__ = [
    "Functions",
    "KVCache",
    "Llama",
    "LlamaConfig",
    "PagedCache",
    "QuantizedCache",
    "SharedPrefixCache",
    "SplitCache",
    "bits_per_byte",
    "capture",
    "encode",
    "generate",
    "generate_drafted",
    "half_precision",
    "held_out_text",
    "kv_accuracy",
    "load",
    "load_tokenizer",
    "plain_attention",
    "preset",
    "random_model",
    "rms_norm",
    "sdpa_attention",
    "swapped_text",
    "swiglu",
    "text_unchanged",
    "text_with",
    "tiny",
]

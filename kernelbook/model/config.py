"""The shape of a Llama, and its translation from and to Hugging Face's `config.json`."""

from dataclasses import dataclass
from math import isclose

ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a Llama: everything needed to build one, and nothing about its weights.

    `head_dim` is independent of `hidden`; `heads` must be a multiple of `kv_heads`.
    `rope_scaling` is None or a dict with `rope_type` "linear" or "llama3" and its numbers.
    """

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int = 2048
    eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: dict | None = None
    tied: bool = False  # the LM head is the embedding table
    attention_bias: bool = False

    def __post_init__(self):
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"RoPE rotates pairs: head_dim must be even, got {self.head_dim}")
        kind = (self.rope_scaling or {}).get("rope_type", "default")
        if kind not in ROPE_TYPES:
            raise ValueError(f"rope scaling {kind!r} is not supported, only {ROPE_TYPES}")

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def parameters(self) -> int:
        """Number of weights: embedding, layers, norms, and the LM head where it is not tied."""
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * query + 2 * kv)
        bias = (query + 2 * kv + self.hidden) if self.attention_bias else 0
        layer = attention + bias + 3 * self.hidden * self.intermediate + 2 * self.hidden
        tables = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + tables + self.hidden

    def kv_bytes_per_token(self, element_bytes: int = 2) -> int:
        """Bytes of K and V that one token leaves in the cache, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes


def from_hugging_face(config: dict) -> LlamaConfig:
    """LlamaConfig of a parsed `config.json`; ValueError names what this model cannot do."""
    _refuse_other_models(config)
    rope = _rope_parameters(config)
    heads = config["num_attention_heads"]
    return LlamaConfig(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        context=config.get("max_position_embeddings", 2048),
        eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=rope.pop("rope_theta", None) or config.get("rope_theta") or 10000.0,
        rope_scaling=rope if rope["rope_type"] != "default" else None,
        tied=config.get("tie_word_embeddings", False),
        attention_bias=config.get("attention_bias", False),
    )


def to_hugging_face(config: LlamaConfig, dtype: str = "float16") -> dict:
    """`config.json` of this shape, in the keys that transformers and other engines read."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
        "tie_word_embeddings": config.tied,
        "attention_bias": config.attention_bias,
        "mlp_bias": False,
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "torch_dtype": dtype,
    }


def _refuse_other_models(config: dict):
    expected = {"model_type": "llama", "hidden_act": "silu", "mlp_bias": False}
    for key, value in expected.items():
        if config.get(key, value) != value:
            raise ValueError(
                f"config.json says {key} = {config[key]!r}; this loader reads Llama layouts "
                f"with {key} = {value!r} only"
            )
    required = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    missing = [key for key in (*required, "num_attention_heads") if key not in config]
    if missing:
        raise ValueError(f"config.json lacks {', '.join(missing)}")


def _rope_parameters(config: dict) -> dict:
    """Rope settings of either spelling: `rope_scaling` of older files, `rope_parameters`."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_type", rope.pop("type", "default"))
    if not isclose(rope.pop("partial_rotary_factor", 1.0) or 1.0, 1.0):
        raise ValueError("partial_rotary_factor other than 1 is not supported")
    return rope

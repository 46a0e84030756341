"""Which kernel did PyTorch's SDPA run? Its name in the profiler and its time, for each backend."""

import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.tiled_attention import BF16, PREFILL, inputs
from kernelbook import backend, timeline, timing


def _asked(q, k, v, mask):
    causal, dense = mask == "causal", None
    if mask == "dense":  # the same mask, as a tensor
        dense = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device="cuda").tril()
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=dense, is_causal=causal)


def _named(call, choice: SDPBackend | None):
    def named():
        with sdpa_kernel(choice):
            return call()

    return named if choice is not None else call


BACKENDS = {
    "default": None,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def run(writer, n: int = 4096) -> None:
    """The longest kernel of each call, for four ways to ask; refused where a backend cannot."""
    if not backend.GPU:
        print("sdpa_backend: skipped, no GPU")
        return
    for dtype, mask in ((BF16, "none"), (BF16, "causal"), (BF16, "dense"), (torch.float32, "none")):
        q, k, v = inputs(PREFILL, n, n, dtype)
        call, shape = _asked(q, k, v, mask), {**PREFILL, "n": n, "mask": mask}
        for name, choice in BACKENDS.items():
            row = {"op": "sdpa_backend", "variant": name, "shape": shape, "dtype": dtype}
            asked = _named(call, choice)
            try:
                with warnings.catch_warnings():  # a refusal's reasons, one warning each
                    warnings.simplefilter("ignore")
                    kernel = timeline.profile(asked).longest[0]
                    found = timing.measure(asked, min_ms=10, warmup_ms=5)
            except RuntimeError as error:
                if "CUDA error" in str(error):
                    raise
                kernel, found = "", None
            print(f"{mask} {dtype} {name}: {kernel[:60] or 'refused'}")
            writer.add(**row, timing=found, peer=True, kernel_name=kernel or "refused")
            torch.cuda.empty_cache()

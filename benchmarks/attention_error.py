"""Errors of naive, chapter 03's, tuned and SDPA attention against float64, by dtype and mask."""

import torch

from benchmarks.tiled_attention import inputs, sdpa, variants
from kernelbook import backend, checks
from kernelbook.kernels import attention_prefill as prefill


def run(writer) -> None:
    """‖out - truth‖ / ‖truth‖ in float64, 4 heads, head_dim 128."""
    if not backend.GPU:
        print("attention_error: skipped, no GPU")
        return
    functions = variants() | {"sdpa": sdpa}
    functions.pop("sdpa_cudnn")
    sizes = {"batch": 1, "query_heads": 4, "kv_heads": 4, "head_dim": 128}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for n in (1024, 4096):
            for causal in (False, True):
                q, k, v = inputs(sizes, n, n, dtype)
                truth = checks.reference64(prefill.reference, q, k, v, causal)
                shape = {**sizes, "n": n, "causal": causal}
                for name, function in functions.items():
                    error = checks.relative_error(function(q, k, v, causal=causal), truth)
                    row = {"op": "attention_error", "variant": name, "shape": shape}
                    row |= {"dtype": dtype, "peer": name == "sdpa"}
                    writer.add(**row, error=float(f"{error:.4g}"))

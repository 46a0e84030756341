"""Calls PyTorch instead of writing a kernel.

cell: lab02_task3
points: 0
says: the work belongs into your kernel, but PyTorch ran: _softmax
"""

import torch


def softmax(x):
    return torch.softmax(x, dim=-1)

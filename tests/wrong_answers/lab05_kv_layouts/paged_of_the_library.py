"""Calls PyTorch's attention instead of writing a kernel.

cell: lab05_task2
points: 0
says: the work belongs into your kernel, but PyTorch ran
"""

import torch


def paged_decode(q, k_pages, v_pages, table, lengths):
    k, v = (x[table.long()].transpose(1, 2).flatten(2, 3) for x in (k_pages, v_pages))
    seen = torch.arange(k.shape[2]) < lengths[:, None]
    k, v = (torch.where(seen[:, None, :, None], x, 0.0) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(
        q[:, :, None], k, v, attn_mask=seen[:, None, None], enable_gqa=True
    )[:, :, 0]

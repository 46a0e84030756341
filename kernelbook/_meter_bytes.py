"""Unique bytes that tensors cover: views, expanded dimensions and shared storages counted once."""

import itertools

import numpy as np
import torch


def unique_bytes(tensors: list[torch.Tensor]) -> int:
    """Unique bytes that tensors cover: expanded and shared memory once."""
    by_storage: dict[int, dict] = {}
    for tensor in tensors:
        if tensor.numel():
            region = (tensor.data_ptr(), tensor.element_size(), *_layout(tensor))
            by_storage.setdefault(tensor.untyped_storage().data_ptr(), {})[region] = None
    return sum(_covered(list(regions)) for regions in by_storage.values())


def _layout(tensor) -> tuple[tuple[int, int], ...]:
    """(stride, size) of each dimension that has more than one place, smallest stride first."""
    pairs = zip(tensor.stride(), tensor.size(), strict=True)
    return tuple(sorted((step, n) for step, n in pairs if step and n > 1))


def _covered(regions) -> int:
    """Bytes of the union of regions (address, itemsize, (stride, size)...) of one storage."""
    if all(_disjoint_inside(region) for region in regions):
        spans = sorted((region[0], region[0] + _span(region)) for region in regions)
        if all(a[1] <= b[0] for a, b in itertools.pairwise(spans)):
            return sum(region[1] * int(np.prod([n for _, n in region[2:]])) for region in regions)
    start = min(region[0] for region in regions)
    end = max(region[0] + _span(region) for region in regions)
    touched = np.zeros(end - start, bool)
    for address, itemsize, *dims in regions:
        shape = (*(n for _, n in dims), itemsize)
        strides = (*(step * itemsize for step, _ in dims), 1)
        np.lib.stride_tricks.as_strided(touched[address - start :], shape, strides)[...] = True
    return int(np.count_nonzero(touched))


def _span(region) -> int:
    return (sum((n - 1) * step for step, n in region[2:]) + 1) * region[1]


def _disjoint_inside(region) -> bool:
    """Whether no two elements share memory: each stride steps over all smaller dimensions."""
    reach = 0
    for step, n in region[2:]:
        if step <= reach:
            return False
        reach += (n - 1) * step
    return True

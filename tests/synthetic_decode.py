"""Helpers for decode tests: a cache cut into pages in random order, a kernel file with a fault."""

import importlib.util
import sys
from pathlib import Path

import torch

from kernelbook import kernels

FOLDER = Path(kernels.__file__).parent


def paged(caches, page_size: int):
    """Caches [B, capacity, ...] as pools of pages, shuffled, and the block table; None stays.

    A page past a sequence's end, and a page of nobody's, hold the poison of `empty_like`.
    """
    known = next(x for x in caches if x is not None)
    batch, capacity = known.shape[:2]
    pages = -(-capacity // page_size)
    order = torch.randperm(batch * pages + 1)
    table = order[: batch * pages].reshape(batch, pages).to(torch.int32).to(known.device)
    return [x if x is None else _pool(x, page_size, pages, order) for x in caches], table


def _pool(x, page_size, pages, order):
    batch, capacity, *rest = x.shape
    poison = float("nan") if x.is_floating_point() else 127
    whole = torch.full((batch, pages * page_size, *rest), poison, dtype=x.dtype, device=x.device)
    whole[:, :capacity] = x
    pool = whole.new_full((len(order), page_size, *rest), poison)
    pool[order[: batch * pages].to(x.device)] = whole.reshape(-1, page_size, *rest)
    return pool


def edited(name: str, faults: list[tuple[str, str]], folder: Path):
    """The kernel file with places of it changed, each standing there once, as its own module."""
    text = (FOLDER / f"{name}.py").read_text()
    for before, after in faults:
        assert text.count(before) == 1, f"{before!r} must stand in {name}.py exactly once"
        text = text.replace(before, after)
    file = folder / f"{name}_edited.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # the compiler looks a function's module up by its name
    spec.loader.exec_module(module)
    return module

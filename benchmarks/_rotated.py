"""Variants of one call, timed in CUDA graphs on rotated inputs; what cannot run is left out."""

from collections.abc import Callable

import torch

from kernelbook import timing


def running(calls: dict[str, Callable], inputs: tuple) -> dict[str, Callable]:
    """The variants that work on these inputs; the others are named."""
    able = {}
    for name, call in calls.items():
        try:
            call(*inputs)
            torch.cuda.synchronize()
            able[name] = call
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0][:100]
            print(f"{name} skipped, {type(error).__name__}: {reason}")
    return able


def side_by_side(calls: dict[str, Callable], make_inputs: Callable, bytes_each: int) -> dict:
    """name -> Timing. Each call gets a whole set of inputs and takes from it what it needs.

    bytes_each  what the variant that moves least moves: the sets exceed the L2 for it, too
    """
    able = running(calls, make_inputs())
    sets = timing.rotate(make_inputs, bytes_each=bytes_each)
    bound = {name: sets.bind(call) for name, call in able.items()}
    few = {"calls": 4} if bytes_each > 2**27 else {}
    found = timing.side_by_side(bound, graph=True, min_ms=20, warmup_ms=6, **few)
    del bound, sets
    torch.cuda.empty_cache()
    return found

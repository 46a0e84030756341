"""Variants of one call: right numbers first, then times in CUDA graphs on rotated inputs.

What cannot run, or is wrong, is named and left out.
"""

from collections.abc import Callable

import torch

from benchmarks import _warm
from kernelbook import checks, timing

LOOSE = 3e-2  # a peer's own roundings, of scores in bf16 for instance, are not ours to judge


def sample(batch: int) -> list[int]:
    """The sequences whose results are checked: the first and the last."""
    return sorted({0, batch - 1})


def refusal(call: Callable, inputs: tuple, expected: torch.Tensor | None, tolerance) -> str | None:
    """Why a call is not measured: it fails, or its sampled sequences differ from `expected`."""
    try:
        out = call(*inputs)
        if expected is not None:
            checks.check(out[sample(len(out))], expected, tolerance)
        torch.cuda.synchronize()
    except Exception as error:
        if "CUDA error" in str(error):  # the process cannot use the GPU any more
            raise
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:160]
    return None


def passing(
    calls: dict[str, Callable],
    inputs: tuple,
    expected: dict[str, Callable] | None = None,
    loose: tuple[str, ...] = (),
) -> dict[str, Callable]:
    """The variants that run on these inputs and give the numbers that they should.

    expected  name -> function of the same inputs: sampled sequences in float64; one without is
              only run
    loose     names of peers that are checked at LOOSE instead of the dtype's tolerance
    """
    _warm.compile_all(calls.values(), *inputs)
    able, known = {}, {}
    for name, call in calls.items():
        function = (expected or {}).get(name)
        if function is not None and function not in known:
            known[function] = function(*inputs)
        tolerance = LOOSE if name in loose else None
        reason = refusal(call, inputs, known.get(function), tolerance)
        if reason is None:
            able[name] = call
        else:
            print(f"{name} skipped, {reason}")
    return able


def side_by_side(
    calls: dict[str, Callable],
    make_inputs: Callable,
    bytes_each: int,
    expected: dict[str, Callable] | None = None,
    loose: tuple[str, ...] = (),
    **options,
) -> dict:
    """name -> Timing. Each call gets a whole set of inputs and takes from it what it needs.

    bytes_each      what the variant that moves least moves: the sets exceed the L2 for it, too
    expected, loose as for `passing`
    options         of `timing.side_by_side`
    """
    able = passing(calls, make_inputs(), expected, loose)
    sets = timing.rotate(make_inputs, bytes_each=bytes_each)
    bound = {name: sets.bind(call) for name, call in able.items()}
    few = {"calls": 4} if bytes_each > 2**27 else {}
    options = {"min_ms": 20, "warmup_ms": 6, **few, **options}
    found = timing.side_by_side(bound, graph=True, **options)
    del bound, sets
    torch.cuda.empty_cache()
    return found

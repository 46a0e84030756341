"""Times of GPU work: medians with their spread, by device events.

Which way to time decides what is timed:
- `measure(fn)`: events around each call. The L2 is emptied before each one, which also lets the
  CPU run ahead; a call that needs more launches than that hides shows the gaps between them.
- `measure(fn, graph=True)`: twenty calls captured in a CUDA graph, so launch cost is gone. For
  anything below 50 µs. Nothing can empty the L2 between the calls of a graph: give `fn` other
  inputs at each call with `rotate`.
- `host_us(fn)`: the CPU's own time for a call.
Compare variants with `side_by_side` only: machines drift, so they take turns in one process.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter

import numpy as np
import torch

from kernelbook import backend

# Bound here, so that code which is being timed cannot replace its own clock.
_Event, _synchronize = torch.cuda.Event, torch.cuda.synchronize

FLUSH = 4  # the flushed buffer, in sizes of the L2
MOST_SAMPLES = 1000
LAUNCHES_HIDDEN = 200_000  # GPU cycles of waiting, about 0.1 ms, while the CPU runs ahead


@dataclass(frozen=True)
class Timing:
    """Microseconds a call: median, 10th and 90th percentile of `samples`.

    method  how it was taken, e.g. "events, cold L2" or "graph of 20, rotated"
    """

    median_us: float
    p10_us: float
    p90_us: float
    samples: tuple[float, ...] = ()
    method: str = ""

    @classmethod
    def of(cls, samples, method: str = "") -> "Timing":
        p10, median, p90 = (float(x) for x in np.percentile(samples, (10, 50, 90)))
        return cls(median, p10, p90, tuple(float(x) for x in samples), method)

    def per_s(self, amount: float) -> float:
        """`amount` (bytes or FLOPs a call) a second: `timing.per_s(work.bytes) / 1e12` is TB/s."""
        return amount / (self.median_us * 1e-6)

    def __str__(self):
        return f"{self.median_us:.1f} µs ({self.p10_us:.1f} to {self.p90_us:.1f})"


def _need_gpu():
    if not backend.GPU:
        raise RuntimeError(
            "timing needs a GPU, and there is none here: read recorded measurements instead, "
            "kernelbook.records.load(op=...)"
        )


class Rotation:
    """Sets of equal inputs, taken in turn, that together exceed the L2 twice."""

    def __init__(self, sets: list[tuple]):
        self.sets = [inputs if isinstance(inputs, tuple) else (inputs,) for inputs in sets]

    def bind(self, fn: Callable) -> Callable:
        """A function without arguments that calls `fn` with the next set at each call."""
        turn = cycle(self.sets)

        def call():
            return fn(*next(turn))

        call.sets = len(self.sets)
        return call


def sets_past_l2(bytes_each: int, l2_bytes: int) -> int:
    """How many input sets of `bytes_each` exceed the L2 twice, at least 2."""
    return max(2, math.ceil(2 * l2_bytes / bytes_each) + 1)


def rotate(make_inputs, bytes_each: int | None = None) -> Rotation:
    """Inputs that the L2 cannot hold: `rotate(lambda: (q(), k()), bytes_each=n).bind(attention)`.

    make_inputs  a function that makes one set (a tuple of arguments), or a list of sets
    bytes_each   bytes that a call reads and writes of one set
    """
    if not callable(make_inputs):
        return Rotation(list(make_inputs))
    _need_gpu()
    if not bytes_each or bytes_each < 1:
        raise ValueError(f"rotate needs bytes_each, the bytes of one set, got {bytes_each}")
    return Rotation(
        [make_inputs() for _ in range(sets_past_l2(bytes_each, backend.machine().l2_bytes))]
    )


class Graphed:
    """Calls captured in a CUDA graph; calling it replays all `calls` of them."""

    def __init__(self, graph, calls: int):
        self.graph, self.calls = graph, calls

    def __call__(self):
        self.graph.replay()


def graphed(fn: Callable, calls: int = 20) -> Graphed:
    """Capture `calls` calls of `fn` in one CUDA graph; whole rounds of its rotated inputs.

    `fn` runs on a side stream first: that compiles, tunes and allocates outside the capture.
    """
    _need_gpu()
    sets = getattr(fn, "sets", 1)
    calls = math.ceil(calls / sets) * sets
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(max(2, sets)):  # ends where a round of inputs ends
            fn()
    torch.cuda.current_stream().wait_stream(side)
    _synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            fn()
    return Graphed(graph, calls)


class _Flush:
    """Fill the L2 with other data by reading a buffer larger than it.

    Reading, not writing: lines left modified would be written back at the cost of the next kernel.
    """

    def __init__(self):
        size = FLUSH * max(backend.machine().l2_bytes, 2**24)
        self.buffer = torch.zeros(size // 4, dtype=torch.float32, device="cuda")
        self.result = torch.zeros((), dtype=torch.float32, device="cuda")

    def __call__(self):
        _wait_on_gpu()  # or a short call would be timed together with its own launch
        torch.sum(self.buffer, dim=0, out=self.result)


def _wait_on_gpu():
    """Keep the GPU busy without touching memory, so that the CPU gets ahead and the L2 stays."""
    torch.cuda._sleep(LAUNCHES_HIDDEN)


class _Candidate:
    """One function being timed: how to run it once, and what one run counts as."""

    def __init__(self, fn, before: Callable, cold: bool, graph: bool, calls: int):
        rotated = getattr(fn, "sets", 1) > 1
        self.run = graphed(fn, calls) if graph else fn
        self.calls = self.run.calls if graph else 1
        l2 = "rotated" if rotated else "cold L2" if cold and not graph else "warm L2"
        self.method = f"graph of {self.calls}, {l2}" if graph else f"events, {l2}"
        self.before = before
        self.samples: list[float] = []

    def sample(self, count: int) -> list[float]:
        """Microseconds a call of `count` runs."""
        pairs = [(_Event(enable_timing=True), _Event(enable_timing=True)) for _ in range(count)]
        for start, end in pairs:
            self.before()
            start.record()
            self.run()
            end.record()
        _synchronize()
        return [start.elapsed_time(end) * 1e3 / self.calls for start, end in pairs]

    def warm_up(self, warmup_ms: float):
        """Run for `warmup_ms`: compiles, tunes, raises the clocks."""
        self.sample(1)
        until = perf_counter() + warmup_ms * 1e-3
        while perf_counter() < until:
            self.sample(3)
        self.estimate_us = float(np.median(self.sample(3))) * self.calls

    def runs_in(self, ms: float) -> int:
        return min(MOST_SAMPLES, max(3, math.ceil(ms * 1e3 / self.estimate_us)))

    def refuse_hidden_work(self):
        """Raise if work goes on elsewhere after the timed stream is done: it was not timed."""
        left = []
        for _ in range(3):
            _synchronize()
            end = _Event(enable_timing=True)
            self.run()
            end.record()
            end.synchronize()
            began = perf_counter()
            _synchronize()
            left.append((perf_counter() - began) * 1e6)
        if min(left) > 50 + 0.2 * self.estimate_us:
            raise RuntimeError(
                f"work went on for {min(left):.0f} µs after the current stream was done: the "
                "function uses another stream without waiting for it, so its time would be wrong"
            )


def measure(
    fn: Callable,
    *,
    cold: bool = True,
    graph: bool = False,
    calls: int = 20,
    min_ms: float = 100,
    warmup_ms: float = 50,
    repeats: int | None = None,
) -> Timing:
    """Time `fn()` on the GPU, in µs a call.

    cold     empty the L2 before each call; in a graph see `rotate`
    graph    capture `calls` calls and time replays
    min_ms   GPU time to sample for; `repeats` samples instead, where given
    Raises RuntimeError without a GPU, and when `fn` leaves work on another stream.
    """
    options = {"min_ms": min_ms, "warmup_ms": warmup_ms, "repeats": repeats}
    found = side_by_side({"": fn}, cold=cold, graph=graph, calls=calls, rounds=1, **options)
    return found[""]


def side_by_side(
    variants: dict[str, Callable],
    *,
    cold: bool = True,
    graph: bool = False,
    calls: int = 20,
    rounds: int = 10,
    min_ms: float = 100,
    warmup_ms: float = 50,
    repeats: int | None = None,
) -> dict[str, Timing]:
    """Time variants in turn, `rounds` times, each round starting with another one.

    Options as for `measure`, for each variant; all are timed the same way. Returns name -> Timing.
    """
    _need_gpu()
    before = _Flush() if cold else _wait_on_gpu
    candidates = {name: _Candidate(fn, before, cold, graph, calls) for name, fn in variants.items()}
    methods = {name: c.method.split(", ")[1] for name, c in candidates.items()}
    if len(set(methods.values())) > 1:
        raise ValueError(f"variants must be timed alike, but these differ: {methods}")
    for candidate in candidates.values():
        candidate.warm_up(warmup_ms)
    for turn in range(rounds):
        for name in turn_order(list(candidates), turn):
            one = candidates[name]
            total = repeats or one.runs_in(min_ms)
            one.samples += one.sample(math.ceil(total / rounds))
    for candidate in candidates.values():
        candidate.refuse_hidden_work()
    return {name: Timing.of(c.samples, c.method) for name, c in candidates.items()}


def turn_order(names: list, turn: int) -> list:
    """The names from another start at each turn, so that none always follows the same one."""
    start = turn % len(names) if names else 0
    return names[start:] + names[:start]


def host_us(fn: Callable, *, calls: int = 50) -> Timing:
    """The CPU's time to issue `fn()`, µs a call: the GPU is waited for outside the clock.

    Keep `calls` times the launches of one call below 1000, where a full queue blocks the CPU.
    """
    _need_gpu()
    samples = []
    for batch in range(22):  # the first two warm up
        _synchronize()
        began = perf_counter()
        for _ in range(calls):
            fn()
        issued = perf_counter() - began
        _synchronize()
        if batch >= 2:
            samples.append(issued * 1e6 / calls)
    return Timing.of(samples, "host")

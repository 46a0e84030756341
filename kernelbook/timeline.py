"""A profiler's trace as kernels on streams: busy time, gaps, overlap, shares, launches, waits.

`profile(fn)` records with torch.profiler on a GPU; `load(path)` reads a saved Chrome trace, so the
questions can be put to a recorded run anywhere. Times are microseconds from the first event.
"""

import tempfile
from collections import defaultdict
from dataclasses import astuple, dataclass, field
from pathlib import Path

from kernelbook import backend, chrome_trace

LAUNCH_CALLS = ("LaunchKernel", "GraphLaunch", "LaunchCooperative")
REGION = "kernelbook.profile"  # what `profile` puts around the calls it is asked about


@dataclass(frozen=True)
class Event:
    """Something on the GPU ("kernel", "copy", "memset") or the CPU ("host", "operation")."""

    name: str
    start_us: float
    duration_us: float
    stream: int = 0
    kind: str = "kernel"

    @property
    def end_us(self) -> float:
        return self.start_us + self.duration_us

    @property
    def communication(self) -> bool:
        """Whether this is a collective's kernel."""
        return "nccl" in self.name.lower()


@dataclass(frozen=True)
class Gap:
    """Time in which a stream had nothing to do between two of its events."""

    stream: int
    start_us: float
    duration_us: float
    before: str
    after: str


@dataclass
class Timeline:
    """What ran on the GPU, and what the host did to make it run.

    kernels, copies  on the GPU; memsets count as copies
    host             calls of the CUDA runtime and driver
    operations       PyTorch operations that the CPU dispatched, without those inside others
    """

    kernels: list[Event]
    copies: list[Event] = field(default_factory=list)
    host: list[Event] = field(default_factory=list)
    operations: list[Event] = field(default_factory=list)

    @property
    def device(self) -> list[Event]:
        """Kernels and copies, by start."""
        return sorted(self.kernels + self.copies, key=lambda event: event.start_us)

    @property
    def span_us(self) -> float:
        """From the first GPU event's start to the last one's end."""
        events = self.device
        return max(e.end_us for e in events) - events[0].start_us if events else 0.0

    @property
    def busy_us(self) -> float:
        """Time in which at least one kernel or copy ran."""
        return covered(spans(self.device))

    @property
    def busy_fraction(self) -> float:
        return self.busy_us / self.span_us if self.span_us else 0.0

    def gaps(self, at_least_us: float = 0.0) -> list[Gap]:
        """Idle times between the events of each stream, longest first."""
        streams = defaultdict(list)
        for event in self.device:
            streams[event.stream].append(event)
        found = [gap for events in streams.values() for gap in _gaps_of(events)]
        found = [gap for gap in found if gap.duration_us > at_least_us]
        return sorted(found, key=lambda gap: -gap.duration_us)

    def shares(self) -> dict[str, float]:
        """Kernel name -> fraction of all kernels' time, largest first; they sum to 1."""
        total = sum(kernel.duration_us for kernel in self.kernels)
        by_name = defaultdict(float)
        for kernel in self.kernels:
            by_name[kernel.name] += kernel.duration_us
        return {
            name: time / total for name, time in sorted(by_name.items(), key=lambda item: -item[1])
        }

    @property
    def longest(self) -> tuple[str, float] | None:
        """The kernel with the largest share, and that share."""
        return next(iter(self.shares().items()), None)

    @property
    def overlap(self) -> float | None:
        """Fraction of communication time during which computation ran too; None without any."""
        talk = spans([kernel for kernel in self.kernels if kernel.communication])
        work = spans([kernel for kernel in self.kernels if not kernel.communication])
        if not talk:
            return None
        return (covered(talk) + covered(work) - covered(talk + work)) / covered(talk)

    @property
    def launches(self) -> int:
        """Launch calls that the host made; a graph's replay is one, whatever it holds."""
        return sum(_is(event, LAUNCH_CALLS) for event in self.host)

    @property
    def syncs(self) -> list[Event]:
        """Calls in which the host waited for the GPU (not waits of one stream for another)."""
        return [e for e in self.host if "Synchronize" in e.name or e.name == "cudaMemcpy"]

    def kernel_count(self) -> dict[str, int]:
        """Kernel name -> how often it ran, most often first."""
        counts = defaultdict(int)
        for kernel in self.kernels:
            counts[kernel.name] += 1
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    def table(self, rows: int = 8) -> str:
        """The four questions, answered as text."""
        lines = [
            f"{len(self.kernels)} kernels, {self.launches} launch calls, {len(self.syncs)} syncs",
            f"busy {self.busy_us:.0f} of {self.span_us:.0f} µs ({self.busy_fraction:.0%}), "
            f"{len(self.gaps(at_least_us=1))} gaps above 1 µs",
        ]
        if self.overlap is not None:
            lines.append(f"{self.overlap:.0%} of communication overlaps computation")
        counts = self.kernel_count()
        for name, share in list(self.shares().items())[:rows]:
            lines.append(f"{share:6.1%}  {counts[name]:5d} ×  {name[:70]}")
        return "\n".join(lines)

    def save(self, path):
        """Write a small Chrome trace (gzip where the name ends in .gz); `load` reads it back."""
        events = self.kernels + self.copies + self.host + self.operations
        chrome_trace.write(path, [astuple(event) for event in events])


def spans(events: list[Event]) -> list[tuple[float, float]]:
    return [(event.start_us, event.end_us) for event in events]


def covered(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _gaps_of(events: list[Event]):
    """Gaps between consecutive events of one stream, sorted by start."""
    last = events[0]
    for event in events[1:]:
        if event.start_us > last.end_us:
            idle = event.start_us - last.end_us
            yield Gap(event.stream, last.end_us, idle, last.name, event.name)
        if event.end_us > last.end_us:
            last = event


def _is(event: Event, calls: tuple[str, ...]) -> bool:
    return any(call in event.name for call in calls)


def read(trace: dict | list) -> Timeline:
    """A Timeline from Chrome trace events, as torch.profiler exports them."""
    events = [Event(*row) for row in chrome_trace.rows(trace, REGION)]
    groups = {kind: [e for e in events if e.kind == kind] for kind in {e.kind for e in events}}
    return Timeline(
        kernels=groups.get("kernel", []),
        copies=[e for e in events if e.kind in ("copy", "memset")],
        host=groups.get("host", []),
        operations=groups.get("operation", []),
    )


def load(path) -> Timeline:
    """Read a saved Chrome trace, `.json` or `.json.gz`.

    Raises FileNotFoundError, and ValueError where the file is no Chrome trace.
    """
    try:
        return read(chrome_trace.parse(Path(path).read_bytes()))
    except FileNotFoundError:
        raise
    except (ValueError, KeyError, AttributeError, TypeError, OSError, EOFError) as error:
        raise ValueError(f"{Path(path).name} is not a Chrome trace: {error}") from error


def profile(fn, warmup: int = 3, calls: int = 1) -> Timeline:
    """Run `fn()` `calls` times under torch.profiler, after `warmup` runs, as a Timeline.

    Raises RuntimeError without a GPU.
    """
    if not backend.GPU:
        raise RuntimeError(
            "profiling needs a GPU, and there is none here: load a recorded trace instead, "
            'kernelbook.timeline.load("data/traces/...")'
        )
    import torch
    from torch.profiler import ProfilerActivity

    for _ in range(warmup):
        fn()
    torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        with torch.profiler.record_function(REGION):  # leaves out the synchronize that follows
            for _ in range(calls):
                fn()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return load(path)

"""The waste meter: exact counts of what a callable does, the same on every machine.

    counts = meter.count(attention, q, k, v)
    counts.read, counts.written, counts.flops, counts.programs, counts.launches, counts.waits
    print(counts.table())

The callable runs once, on CPU copies of its tensors and modules, its Triton kernels in the
interpreter. Rules:
- bytes are unique per launch or operation, to the byte, and summed over launches; what kernels
  request (programs that read the same bytes count each) stands beside, and 32-byte sectors.
- FLOPs are as issued, padding and masked tiles included: 2 m n k for each matrix product, else one
  an element and operation in floating point. `flops` is that of the matrix products where there are
  any, else that of element arithmetic. The tables in `_meter_operations` say what counts how.
- a PyTorch operation counts where it writes memory: views are none. A GPU may run it as more than
  one kernel, or fuse several. Indexing counts the places it touches.
- a wait is a moment when the host needs a value from the device: item, cpu, tolist, printing,
  indexing by a mask, nonzero, a tensor as index or size, synchronize, ... Every tensor counts as
  if it were on a device, but for those that come from `.cpu()` and what is made of them alone.
"""

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch

from kernelbook import interpreter
from kernelbook._meter_copies import on_cpu, refuse_captured
from kernelbook._meter_kernels import KernelCounts, KernelWatcher
from kernelbook._meter_operations import OperationCounts, OperationWatcher
from kernelbook._meter_waits import WaitWatcher, device_stand_ins

__all__ = ["Counts", "KernelCounts", "OperationCounts", "closed", "count"]

_closed: list[str] = []


@dataclass
class Counts:
    """What a callable did. `events` holds its kernels and operations in order."""

    events: list[KernelCounts | OperationCounts] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    result: object = field(default=None, repr=False)

    @property
    def kernels(self) -> list[KernelCounts]:
        return [event for event in self.events if isinstance(event, KernelCounts)]

    @property
    def operations(self) -> list[OperationCounts]:
        return [event for event in self.events if isinstance(event, OperationCounts)]

    def _total(self, name: str, instead: str = "") -> int:
        return sum(getattr(event, name, getattr(event, instead, 0)) for event in self.events)

    @property
    def read(self) -> int:
        return self._total("read")

    @property
    def written(self) -> int:
        return self._total("written")

    @property
    def bytes(self) -> int:
        return self.read + self.written

    @property
    def requested_read(self) -> int:
        return self._total("requested_read", "read")

    @property
    def requested_written(self) -> int:
        return self._total("requested_written", "written")

    @property
    def requested(self) -> int:
        return self.requested_read + self.requested_written

    @property
    def sectors(self) -> int:
        """Unique 32-byte sectors of kernels, in bytes, plus the bytes of PyTorch operations."""
        return self._total("sectors_read", "read") + self._total("sectors_written", "written")

    @property
    def matmul_flops(self) -> int:
        return self._total("matmul_flops")

    @property
    def vector_flops(self) -> int:
        return self._total("vector_flops")

    @property
    def flops(self) -> int:
        return self.matmul_flops or self.vector_flops

    @property
    def programs(self) -> int:
        return self._total("programs")

    @property
    def launches(self) -> int:
        return len(self.kernels)

    @property
    def waits_count(self) -> int:
        return len(self.waits)

    def __str__(self) -> str:
        return self.table()

    def table(self, sms: int = 132) -> str:
        """The four wastes as plain text; programs are set against `sms`."""
        return "\n".join([*self._trips(), *self._idle(sms), *self._launches(), *self._waits()])

    def _trips(self):
        names = ["read", "written", "requested", "FLOPs", "FLOPs per byte"]
        rows = [["trips to HBM, bytes", *names]]
        rows += [[event.name, *_traffic(event)] for event in self.events]
        rows += [["total", *_traffic(self)]] if len(self.events) != 1 else []
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for name, *cells in rows:
            padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            yield "  ".join([name.ljust(widths[0]), *padded])

    def _idle(self, sms: int):
        if self.kernels:
            yield f"idle SMs, of {sms}"
        for kernel in self.kernels:
            yield f"  {kernel.name}: {_waves(kernel.programs, sms)}"

    def _launches(self):
        yield f"launches: {_many(self.launches, 'Triton kernel')}, " + _many(
            len(self.operations), "PyTorch operation"
        )

    def _waits(self):
        yield f"waits: {self.waits_count}"
        yield from (f"  {wait}" for wait in self.waits)


def _traffic(counts) -> list[str]:
    requested = sum(
        getattr(counts, f"requested_{way}", getattr(counts, way)) for way in ("read", "written")
    )
    numbers = [counts.read, counts.written, requested, counts.flops]
    return [*map(str, numbers), _intensity(counts.flops, counts.read + counts.written)]


def _intensity(flops: int, moved: int) -> str:
    """FLOPs per byte, rounded, as an integer or as one over an integer."""
    if not flops or not moved:
        return "0" if moved else "-"
    inverse = (2 * moved + flops) // (2 * flops)
    return f"1/{inverse}" if inverse > 1 else str((2 * flops + moved) // (2 * moved))


def _waves(programs: int, sms: int) -> str:
    if programs < sms:
        return f"{_many(programs, 'program')}, {sms - programs} SMs without one"
    full, rest = divmod(programs, sms)
    tail = f" and {rest} more, {sms - rest} SMs idle at the end" if rest else ""
    return f"{_many(programs, 'program')}: {_many(full, 'full wave')}{tail}"


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


@contextmanager
def closed(why: str):
    """Within this, `count` raises RuntimeError(why)."""
    _closed.append(why)
    try:
        yield
    finally:
        _closed.pop()


def count(fn, *args, **kwargs) -> Counts:
    """Run `fn(*args, **kwargs)` on CPU copies and count. The arguments stay as they are.

    ValueError where `fn` holds tensors of another device in a closure or global. RuntimeError where
    `fn` itself calls the meter.
    """
    if _closed:
        raise RuntimeError(_closed[-1])
    refuse_captured(fn)
    memo: dict = {}
    fn, args, kwargs = on_cpu(fn, memo), on_cpu(args, memo), on_cpu(kwargs, memo)
    counts = Counts()
    operations = OperationWatcher(counts.events)
    waits = WaitWatcher(counts.waits, operations)
    with ExitStack() as watching:
        watching.enter_context(closed("the meter does not run inside what it counts"))
        if "torch._dynamo" in sys.modules:  # a compiled function shows its own operations
            watching.enter_context(torch.compiler.set_stance("force_eager"))
        watching.enter_context(interpreter.observe(KernelWatcher(counts.events)))
        watching.enter_context(device_stand_ins(waits))
        watching.enter_context(operations)
        watching.enter_context(waits)
        counts.result = fn(*args, **kwargs)
    return counts

"""Counts of a Triton launch from what the interpreter tells: exact bytes, FLOPs as issued."""

from dataclasses import dataclass

import numpy as np

SECTOR = 32  # bytes: the smallest piece that a GPU moves between L2 and DRAM


@dataclass
class KernelCounts:
    """One Triton launch.

    requested_read, requested_written  bytes of all active lanes of all programs
    read, written                      unique bytes of them: the compulsory HBM traffic
    sectors_read, sectors_written      the same, rounded out to 32-byte sectors, in bytes
    matmul_flops                       2 m n k of each tl.dot, issued, padding and masked tiles too
    vector_flops                       one a floating-point element and operation
    Atomics read and write.
    """

    name: str
    programs: int
    requested_read: int = 0
    requested_written: int = 0
    read: int = 0
    written: int = 0
    sectors_read: int = 0
    sectors_written: int = 0
    matmul_flops: int = 0
    vector_flops: int = 0

    @property
    def flops(self) -> int:
        return self.matmul_flops or self.vector_flops


class Touched:
    """A byte map of one storage; arguments that share the storage share the map."""

    def __init__(self, nbytes: int):
        self.map = np.zeros(-(-nbytes // SECTOR) * SECTOR, np.uint8)

    def mark(self, start: int, offsets: np.ndarray, itemsize: int) -> None:
        """Mark elements of `itemsize` bytes, `offsets` of them behind byte `start`."""
        if start % itemsize == 0:
            wide = self.map.view(f"u{itemsize}")
            wide[offsets + start // itemsize] = np.iinfo(wide.dtype).max
            return
        for byte in range(itemsize):
            self.map[start + offsets * itemsize + byte] = 255

    def bytes(self) -> int:
        return int(np.count_nonzero(self.map))

    def sectors(self) -> int:
        return int(np.count_nonzero(self.map.view(np.uint64).reshape(-1, 4).any(axis=1))) * SECTOR


class KernelWatcher:
    """An observer of `interpreter.observe` that appends a `KernelCounts` a launch to `kernels`."""

    def __init__(self, kernels: list):
        self.kernels = kernels

    def launch(self, kernel: str, grid, tensors: dict) -> None:
        self.counts = KernelCounts(kernel, grid[0] * grid[1] * grid[2])
        self.read: dict[int, Touched] = {}
        self.written: dict[int, Touched] = {}
        self.places = {name: _place(tensor) for name, tensor in tensors.items()}

    def access(self, kind: str, argument: str, offsets: np.ndarray, itemsize: int) -> None:
        requested = offsets.size * itemsize
        if kind != "store":
            self.counts.requested_read += requested
            self._mark(self.read, argument, offsets, itemsize)
        if kind != "load":
            self.counts.requested_written += requested
            self._mark(self.written, argument, offsets, itemsize)

    def _mark(self, maps, argument, offsets, itemsize) -> None:
        storage, start, nbytes = self.places[argument]
        if storage not in maps:
            maps[storage] = Touched(nbytes)
        maps[storage].mark(start, offsets, itemsize)

    def dot(self, m: int, n: int, k: int) -> None:
        self.counts.matmul_flops += 2 * m * n * k

    def arithmetic(self, elements: int, operation: str) -> None:
        self.counts.vector_flops += elements

    def end_launch(self) -> None:
        counts = self.counts
        counts.read = sum(touched.bytes() for touched in self.read.values())
        counts.written = sum(touched.bytes() for touched in self.written.values())
        counts.sectors_read = sum(touched.sectors() for touched in self.read.values())
        counts.sectors_written = sum(touched.sectors() for touched in self.written.values())
        self.kernels.append(counts)


def _place(tensor) -> tuple[int, int, int]:
    """(which storage, first byte in it, its bytes). Offsets in the storage, so that sectors do not
    depend on where the allocator put it."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), tensor.storage_offset() * tensor.element_size(), storage.nbytes()

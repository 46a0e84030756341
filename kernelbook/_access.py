"""Where a launch may read and write: each active address is checked against its tensors."""

from dataclasses import dataclass

import numpy as np


class AccessError(IndexError):
    """A kernel touched memory outside its tensors; raised before the memory is touched."""

    __module__ = "kernelbook.interpreter"  # where it is to be found


@dataclass(frozen=True)
class Argument:
    """A tensor argument of a launch: its first byte, and bytes up to the end of its last element.

    The range is that of the tensor given, not of the storage it is a view of: an access that leaves
    a view is an error even where the storage goes on. Gaps between a view's rows count as inside.
    """

    name: str
    tensor: object
    address: int
    span: int
    itemsize: int

    @property
    def elements(self) -> int:
        return self.span // self.itemsize


def argument(name: str, tensor) -> Argument:
    """The `Argument` of a tensor passed as `name`."""
    itemsize = tensor.element_size()
    last = sum((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))
    span = (last + 1) * itemsize if tensor.numel() else 0
    return Argument(name, tensor, tensor.data_ptr(), span, itemsize)


def resolve(kernel: str, arguments, origin, addresses: np.ndarray, itemsize: int, kind: str):
    """[(argument, byte offsets)] of active addresses (flat uint64); AccessError if one is outside.

    `origin` is the argument the pointer was computed from, or None (a pointer read from memory):
    then each address is looked up among all tensors of the launch.
    """
    if origin is not None:
        offsets = addresses - np.uint64(origin.address)  # below the start wraps to huge
        if origin.span < itemsize or (offsets > np.uint64(origin.span - itemsize)).any():
            raise _outside(kernel, origin, offsets.view(np.int64), itemsize, kind)
        return [_aligned(kernel, origin, offsets, itemsize, kind)]
    found = []
    for candidate in arguments:
        offsets = addresses - np.uint64(candidate.address)
        inside = (offsets < candidate.span) & (offsets + np.uint64(itemsize) <= candidate.span)
        if inside.any():
            found.append(_aligned(kernel, candidate, offsets[inside], itemsize, kind))
            addresses = addresses[~inside]
        if not addresses.size:
            return found
    raise AccessError(
        f"kernel {kernel}: {kind} at address {int(addresses[0]):#x}, which is in no tensor of this "
        f"launch ({', '.join(a.name for a in arguments) or 'it has none'}): is the mask missing, "
        "or is this not a pointer?"
    )


def _outside(kernel, origin, offsets, itemsize, kind) -> AccessError:
    bad = offsets[(offsets < 0) | (offsets > origin.span - itemsize)]
    worst = int(bad[0]) // origin.itemsize
    valid = f"valid are 0 to {origin.elements - 1}" if origin.span else "it is empty"
    more = f" and {bad.size - 1} more" if bad.size > 1 else ""
    return AccessError(
        f"kernel {kernel}: {kind} of {origin.name} at element {worst}{more}, but {origin.name} has "
        f"{origin.elements} elements ({valid}): is the mask missing?"
    )


def _aligned(kernel, origin, offsets, itemsize, kind):
    if itemsize > 1 and (offsets & np.uint64(itemsize - 1)).any():
        raise AccessError(
            f"kernel {kernel}: {kind} of {origin.name} at an address that is no multiple of "
            f"{itemsize} bytes: a GPU refuses misaligned addresses"
        )
    return origin, offsets.view(np.int64)


class Running:
    """The launch in progress: its kernel's name, its tensors, and who watches."""

    current: "Running | None" = None
    muted = False  # inside a reduction, which counts as a whole

    def __init__(self, kernel: str, arguments: list[Argument], observers):
        self.kernel, self.arguments, self.observers = kernel, arguments, tuple(observers)


def touch(kind: str, origin, addresses: np.ndarray, active, itemsize: int) -> None:
    """Check a block's active addresses (`active`: bools, None for all) and tell watchers."""
    launch = Running.current
    if active is None:
        addresses = np.ascontiguousarray(addresses).reshape(-1)
    else:
        addresses = addresses[np.broadcast_to(active, addresses.shape)]
    if launch is None or not addresses.size:
        return
    found = resolve(launch.kernel, launch.arguments, origin, addresses, itemsize, kind)
    for observer in launch.observers:
        for where, offsets in found:
            observer.access(kind, where.name, offsets // itemsize, itemsize)


def computed(elements: int, operation: str) -> None:
    """Tell watchers of element arithmetic: one FLOP an element."""
    if Running.current is not None and not Running.muted:
        for observer in Running.current.observers:
            observer.arithmetic(elements, operation)


def multiplied(m: int, n: int, k: int) -> None:
    """Tell watchers of a matrix product, 2 m n k FLOPs."""
    if Running.current is not None:
        for observer in Running.current.observers:
            observer.dot(m, n, k)

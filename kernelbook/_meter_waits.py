"""Waits of the host for the device, found on the CPU by treating every tensor as if on a device."""

import linecache
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

# Calls that need a tensor's values on the host, and move nothing else.
READS = {
    **{name: name for name in ("item", "tolist", "numpy")},
    **{f"__{name}__": name for name in ("bool", "int", "float", "complex", "index", "format")},
    "__array__": "numpy",
    "__repr__": "print",
}
# Calls that compute, and return something whose value or size the host must know.
COMPUTES = {
    *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"),
    *("equal", "allclose", "is_nonzero", "__contains__"),
}
CHECKS = {"multinomial", "one_hot"}  # on the CPU alone they look whether their values are legal
_FILE = Path(__file__).resolve()
HERE = {str(_FILE), str(_FILE.with_name("_meter_operations.py")), *torch.__path__}


class WaitWatcher(TorchFunctionMode):
    """Appends each wait, with the line that waits, to `waits`. "cuda" means the CPU here."""

    def __init__(self, waits: list[str], operations):
        super().__init__()
        self.waits, self.operations = waits, operations
        self.calling, self.any_host = "", False
        operations.on_read = self._hidden_read

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if self.operations.paused:
            return func(*args, **kwargs)
        if name in ("cpu", "to", "cuda"):
            return self._move(name, func, args, kwargs)
        if name == "pin_memory" or kwargs.pop("pin_memory", False):
            return self._pinned(name, func, args, kwargs)
        if name == "copy_" and _is_host(args[0]):
            return self._copy_to_host(func, args, kwargs)
        to_device = kwargs.get("device") not in (None, "cpu")
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        if name in READS:
            return self._read(READS[name], func, args, kwargs)
        if self.any_host and not to_device and _all_host((args, kwargs)):
            return self._on_host(name, func, args, kwargs)
        noted = _needs_size(name, args, kwargs)
        if noted:
            self.note("indexing by a mask" if name.endswith("item__") else name.strip("_"))
        self.calling = None if noted or name in CHECKS else name
        try:
            return func(*args, **kwargs)
        finally:
            self.calling = ""

    def note(self, what: str) -> None:
        self.waits.append(f"{what} in {_line()}")

    def _hidden_read(self, tensor) -> None:
        """A call takes a tensor's value as a number: as an index, a bound, a size, a factor."""
        if self.calling is not None and not _is_host(tensor):
            what = "indexing" if self.calling.endswith("item__") else self.calling.strip("_")
            self.note(f"{what or 'a call'} by a tensor's value")

    def _on_host(self, name, func, args, kwargs):
        """Work of the host on its own tensors: no operation of the device, and no wait."""
        with self.uncounted():
            out = func(*args, **kwargs)
            out = list(out) if name == "__iter__" else out
        self._mark(out)
        return iter(out) if name == "__iter__" else out

    def _mark(self, tree) -> None:
        self.any_host = True
        for tensor in _tensors(tree):
            tensor._kernelbook_host = True

    def _read(self, what, func, args, kwargs):
        on_host = [a for a in args if isinstance(a, torch.Tensor) and not _is_host(a)]
        if on_host:
            self.note(what)
        with self.uncounted():
            return func(*args, **kwargs)

    def _move(self, name, func, args, kwargs):
        """`.cpu()` and `.to("cpu")` wait and give a host tensor; other devices are ignored."""
        tensor, *rest = args
        devices = [_device(value) for value in (*rest, kwargs.get("device"))]
        if name == "cpu" or "cpu" in devices:
            asynchronous = name == "to" and (kwargs.get("non_blocking") or True in rest[1:3])
            if not (_is_host(tensor) or asynchronous):
                self.note('.to("cpu")' if name == "to" else "cpu")
            with self.uncounted():
                moved = func(*args, **kwargs)
                moved = moved.clone() if moved is tensor else moved
            self._mark(moved)
            return moved
        upload = name == "cuda" or any(map(_names_device, (*rest, *kwargs.values())))
        rest = ["cpu" if device == "cuda" else value for device, value in zip(devices, rest)]  # noqa: B905
        if _device(kwargs.get("device")) == "cuda":
            kwargs["device"] = "cpu"
        if not _is_host(tensor):
            return tensor if name == "cuda" else func(tensor, *rest, **kwargs)
        with self.uncounted():
            moved = tensor if name == "cuda" else func(tensor, *rest, **kwargs)
            if upload:
                return moved.clone() if moved is tensor else moved
        self._mark(moved)
        return moved

    def _pinned(self, name, func, args, kwargs):
        """Pinned memory is the host's: reading it does not wait, filling it may not either."""
        with self.uncounted():
            pinned = args[0].clone() if name == "pin_memory" else func(*args, **kwargs)
        self._mark(pinned)
        return pinned

    def _copy_to_host(self, func, args, kwargs):
        asynchronous = kwargs.get("non_blocking") or True in args[2:3]
        if not (_is_host(args[1]) or asynchronous):
            self.note("copy to the host")
        with self.uncounted():
            return func(*args, **kwargs)

    @contextmanager
    def uncounted(self):
        """Copies that the host's reading makes are no operations of the device."""
        before, self.operations.paused = self.operations.paused, True
        try:
            yield
        finally:
            self.operations.paused = before


def _is_host(tensor) -> bool:
    """Whether it came from `.cpu()`, or from tensors that did: reading it does not wait again."""
    return getattr(tensor, "_kernelbook_host", False)


def _all_host(tree) -> bool:
    tensors = _tensors(tree)
    return bool(tensors) and all(map(_is_host, tensors))


def _tensors(tree) -> list[torch.Tensor]:
    """All tensors of a call; pytree's leaves leave out those in a slice."""
    parts = [
        [leaf.start, leaf.stop, leaf.step] if isinstance(leaf, slice) else [leaf]
        for leaf in tree_leaves(tree)
    ]
    return [part for leaf in parts for part in leaf if isinstance(part, torch.Tensor)]


def _names_device(value) -> bool:
    """Whether `.to(value)` may lead to the device: `x.device` does, from the host."""
    if isinstance(value, torch.Tensor):
        return not _is_host(value)
    return isinstance(value, torch.device) or _device(value) == "cuda"


def _device(value) -> str | None:
    """ "cuda" or "cpu" where one is written out; `x.device` is the CPU here, and is no request."""
    if isinstance(value, torch.device):
        return "cuda" if value.type == "cuda" else None
    return value.split(":")[0] if isinstance(value, str) else None


def _has_mask(index) -> bool:
    parts = index if isinstance(index, tuple | list) else (index,)
    kinds = (torch.bool, torch.uint8)
    return any(isinstance(p, torch.Tensor) and p.dtype in kinds and p.dim() for p in parts)


def _needs_size(name: str, args, kwargs) -> bool:
    """Whether the size of what a call returns depends on values, so that the host must wait."""
    if name in COMPUTES:
        return True
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name == "repeat_interleave":
        repeats = args[1] if len(args) > 1 else kwargs.get("repeats", args[0])
        return isinstance(repeats, torch.Tensor) and kwargs.get("output_size") is None
    if name == "one_hot":
        return (args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) == -1
    if name == "__setitem__":  # a single value is written under the mask without asking where
        value = args[2]
        single = not isinstance(value, torch.Tensor) or value.numel() == 1
        return _has_mask(args[1]) and not single
    return name == "__getitem__" and _has_mask(args[1])


def _line() -> str:
    """ "function: source line" of the code that waits: the nearest frame outside torch and us."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(tuple(HERE)):
        frame = frame.f_back
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()
    return f"{frame.f_code.co_name}: {line}"


class _StandIn:
    """A stream or event that does nothing, except that its `synchronize` is a wait."""

    watcher: WaitWatcher

    def __init__(self, *_, **__):
        pass

    def synchronize(self):
        self.watcher.note("synchronize")

    def elapsed_time(self, other) -> float:
        return 0.0

    def query(self) -> bool:
        return True

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@contextmanager
def device_stand_ins(watcher: WaitWatcher):
    """`torch.cuda`'s streams, events and synchronize work without a device, and are counted."""
    stand_in = type("StandIn", (_StandIn,), {"watcher": watcher})
    replaced = {
        "synchronize": lambda device=None: watcher.note("synchronize"),
        **dict.fromkeys(("Stream", "Event", "stream"), stand_in),
        **dict.fromkeys(("current_stream", "default_stream"), lambda device=None: stand_in()),
    }
    with mock.patch.multiple(torch.cuda, **replaced):
        yield

"""CPU copies of whatever holds tensors, so that metering changes nothing and runs anywhere."""

import copy
import functools
import types
from contextlib import contextmanager
from unittest import mock

import torch


def on_cpu(value, memo: dict | None = None):
    """A deep copy with all tensors on the CPU; views of one storage stay views of one storage."""
    memo = {} if memo is None else memo
    if isinstance(value, torch.Generator):
        return value
    if isinstance(value, functools.partial):
        return functools.partial(
            on_cpu(value.func, memo), *on_cpu(value.args, memo), **on_cpu(value.keywords, memo)
        )
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, on_cpu(value.__self__, memo))
    if type(value) in (tuple, list):
        return type(value)(on_cpu(item, memo) for item in value)
    with _deepcopy_to_cpu():
        return copy.deepcopy(value, memo)


@contextmanager
def _deepcopy_to_cpu():
    with (
        mock.patch.object(torch.Tensor, "__deepcopy__", _copy_tensor),
        mock.patch.object(torch.nn.Parameter, "__deepcopy__", _copy_tensor),
    ):
        yield


def _copy_tensor(tensor, memo):
    if id(tensor) in memo:
        return memo[id(tensor)]
    with torch.no_grad():
        storages = memo.setdefault("storages", {})
        storage = tensor.untyped_storage()
        key = storage.data_ptr() or id(tensor)
        if key not in storages:
            storages[key] = (
                storage.cpu().clone() if storage.device.type != "cpu" else storage.clone()
            )
        result = torch.empty(0, dtype=tensor.dtype)
        layout = tensor.storage_offset(), tensor.size(), tensor.stride()
        result.set_(storages[key], *layout)
    if isinstance(tensor, torch.nn.Parameter):
        result = torch.nn.Parameter(result, tensor.requires_grad)
    else:
        result.requires_grad_(tensor.requires_grad and tensor.is_floating_point())
    memo[id(tensor)] = result
    memo.setdefault("alive", []).append(tensor)
    return result


def refuse_captured(fn) -> None:
    """ValueError where `fn` reaches tensors that are not on the CPU through closure or globals."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    if not isinstance(fn, types.FunctionType):
        return
    names = [(name, fn.__globals__.get(name)) for name in fn.__code__.co_names]
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            names.append((name, cell.cell_contents))
        except ValueError:  # not assigned yet
            continue
    for name, value in names:
        for tensor in _tensors_in(value):
            if tensor.device.type != "cpu":
                raise ValueError(
                    f"{fn.__name__} uses `{name}`, which is on {tensor.device}, from outside: the "
                    "meter runs on CPU copies, so pass it as an argument: "
                    f"meter.count({fn.__name__}, {name}, ...)"
                )


def _tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors_in(item)

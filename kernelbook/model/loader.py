"""Weights from any folder in Hugging Face's Llama layout: one safetensors file or many."""

import json
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from kernelbook.model.config import from_hugging_face
from kernelbook.model.llama import Llama

LFS = b"version https://git-lfs"  # how the stand-in of a file begins that was not downloaded


def load(folder: str | Path, dtype: torch.dtype | None = None, device="cpu") -> Llama:
    """The model of a folder with `config.json` and `*.safetensors`, ready for inference.

    `dtype` None keeps what the file holds. Tensors are read one at a time straight into the
    model. ValueError if files or tensors are missing, damaged, left over, or of another shape.
    """
    folder = Path(folder)
    config = from_hugging_face(_read_json(folder / "config.json"))
    files = _tensor_files(folder)
    with torch.device("meta"):
        model = Llama(config)
    expected = dict(model.named_parameters())
    _check_names(set(expected), {_name(stored) for stored in files}, config.tied)
    wanted = {stored: path for stored, path in files.items() if _name(stored) in expected}
    weights = {}
    for path in sorted(set(wanted.values())):
        with _opened(path, str(device)) as file:
            for stored in (key for key, where in wanted.items() if where == path):
                tensor = file.get_tensor(stored)
                _check_shape(stored, tensor, expected[_name(stored)])
                weights[_name(stored)] = tensor.to(dtype or tensor.dtype)
    model.load_state_dict(weights, assign=True)
    model.reserve(len(model.cos))  # those made above are as empty as the weights were
    return model.requires_grad_(False).eval()


def _read_json(path: Path) -> dict:
    if not path.is_file():
        raise ValueError(f"{path.parent.name} has no {path.name}")
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:  # no JSON, or no UTF-8
        raise ValueError(_damaged(path, f"is not JSON ({error})")) from None
    if not isinstance(found, dict):
        raise ValueError(_damaged(path, f"holds a {type(found).__name__}, not an object"))
    return found


@contextmanager
def _opened(path: Path, device: str = "cpu"):
    """A file of tensors; ValueError that names it where it cannot be read."""
    try:
        with safe_open(path, framework="pt", device=device) as file:
            yield file
    except SafetensorError as error:
        raise ValueError(_damaged(path, f"is cut short or no safetensors file ({error})")) from None


def _damaged(path: Path, why: str) -> str:
    with path.open("rb") as file:
        if file.read(len(LFS)) == LFS:
            return f"{path.name} is a Git LFS pointer, not the file: run `git lfs pull`"
    return f"{path.name} {why}: download it again"


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Which file holds which tensor: by the index of a sharded model, else by the one file."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if index.is_file():
        named = _read_json(index).get("weight_map")
        if not isinstance(named, dict):
            raise ValueError(_damaged(index, "has no weight_map"))
        files = {name: folder / file for name, file in named.items()}
        absent = sorted({path.name for path in files.values() if not path.is_file()})
        if absent:
            raise ValueError(f"{index.name} names {', '.join(absent)}, not in the folder")
        return files
    if single.is_file():
        with _opened(single) as file:
            return dict.fromkeys(file.keys(), single)
    raise ValueError(f"{folder.name} has neither {single.name} nor {index.name}")


def _name(stored: str) -> str:
    """The parameter's name in this model: files of the causal LM prefix all but the head."""
    return stored.removeprefix("model.")


def _check_names(expected: set[str], found: set[str], tied: bool):
    # older files store rotary tables, and tied files may repeat the embedding as a head
    found = {name for name in found if not name.endswith("rotary_emb.inv_freq")}
    missing = expected - found
    unexpected = found - expected - ({"lm_head.weight"} if tied else set())
    problems = [
        f"{word} {', '.join(sorted(names)[:4])}" + (", ..." if len(names) > 4 else "")
        for word, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    if problems:
        raise ValueError("the weights do not fit config.json: " + "; ".join(problems))


def _check_shape(stored: str, tensor: torch.Tensor, expected: torch.Tensor):
    if tensor.shape != expected.shape:
        raise ValueError(
            f"{stored} is {list(tensor.shape)}, config.json asks for {list(expected.shape)}"
        )

"""Weights from any folder in Hugging Face's Llama layout: one safetensors file or many."""

import json
from pathlib import Path

import torch
from safetensors import safe_open

from kernelbook.model.config import from_hugging_face
from kernelbook.model.llama import Llama


def load(folder: str | Path, dtype: torch.dtype | None = None, device="cpu") -> Llama:
    """The model of a folder with `config.json` and `*.safetensors`, ready for inference.

    `dtype` None keeps what the file holds. Tensors are read one at a time straight into the
    model. ValueError if files or tensors are missing, left over, or of another shape.
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
        with safe_open(path, framework="pt", device=str(device)) as file:
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
    return json.loads(path.read_text())


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Which file holds which tensor: by the index of a sharded model, else by the one file."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if index.is_file():
        files = {name: folder / file for name, file in _read_json(index)["weight_map"].items()}
        absent = sorted({path.name for path in files.values() if not path.is_file()})
        if absent:
            raise ValueError(f"{index.name} names {', '.join(absent)}, not in the folder")
        return files
    if single.is_file():
        with safe_open(single, framework="pt") as file:
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

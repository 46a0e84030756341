"""Text to tokens and back, by the `tokenizer.json` that lies beside the weights."""

from pathlib import Path

import torch
from tokenizers import Tokenizer


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The folder's tokenizer: `.encode(text).ids`, `.decode(ids)` (library `tokenizers`)."""
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"{Path(folder).name} has no tokenizer.json")
    return Tokenizer.from_file(str(path))


def encode(tokenizer: Tokenizer, texts: list[str], length: int | None = None) -> torch.Tensor:
    """Token ids [texts, length]: each text's first `length` tokens, by default the shortest's."""
    ids = [tokenizer.encode(text).ids for text in texts]
    shortest = min(map(len, ids))
    length = shortest if length is None else length
    if length > shortest:
        raise ValueError(f"a text has {shortest} tokens, fewer than the {length} asked for")
    return torch.tensor([row[:length] for row in ids])

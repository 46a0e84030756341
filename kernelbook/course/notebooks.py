"""`make notebooks`: executes the chapters again, in place.

`python -m kernelbook.course.notebooks [chapter ...] [--copy FOLDER]`

On a GPU the whole chapter is kept, then nbval runs it again with the GPU hidden. Without a GPU
only compared outputs are kept: a cell that measures keeps what was committed, as long as its
source is the committed one; otherwise the chapter is refused and the cell named.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from kernelbook import backend
from kernelbook.course import chapters, form, format


class Refused(Exception):
    """A chapter that cannot be brought up to date on this machine."""


def committed(path: Path) -> dict:
    """The notebook at git's HEAD; one without cells if it is not there."""
    name = f"HEAD:./{path.name}"
    shown = subprocess.run(["git", "show", name], cwd=path.parent, capture_output=True, text=True)
    if shown.returncode:
        return {"cells": []}
    notebook = json.loads(shown.stdout)
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook


def measured(notebook: dict) -> dict[str, list]:
    """Outputs of the cells that measure or plot, by source."""
    cells = [cell for cell in chapters.code_cells(notebook) if chapters.is_ignored(cell)]
    return {cell["source"].rstrip(): cell["outputs"] for cell in cells if cell["execution_count"]}


def check_unchanged(notebook: dict, kept: dict[str, list]) -> None:
    """Raises Refused, naming each cell that measures and is not as it was committed."""
    changed = [
        form.where(notebook, cell)
        for cell in chapters.code_cells(notebook)
        if chapters.is_ignored(cell) and cell["source"].rstrip() not in kept
    ]
    if changed:
        cells = "; ".join(changed)
        raise Refused(f"changed since the last commit, so it must be run on a GPU: {cells}")


def without_gpu(path: Path) -> dict:
    """The chapter with fresh compared outputs and the committed measurements."""
    kept = measured(committed(path))
    check_unchanged(chapters.read(path), kept)
    notebook = chapters.execute(path)
    for cell in chapters.code_cells(notebook):
        if chapters.is_ignored(cell):
            cell["outputs"] = kept["".join(cell["source"]).rstrip()]
    return notebook


def update(path: Path) -> str | None:
    """Executes one chapter in place; why it could not be, or None."""
    try:
        format.write(path, chapters.execute(path) if backend.GPU else without_gpu(path))
    except Refused as refusal:
        return f"refused, {refusal}"
    except Exception as error:  # a failing cell: the file stays as it was
        return f"failed, {chapters.error_line(error)}"
    return None


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", help="numbers or names; all if there are none")
    parser.add_argument("--copy", type=Path, help="also copy what was executed into this folder")
    options = parser.parse_args(arguments)
    print(backend.describe(), flush=True)
    failed, done = [], []
    for path in chapters.find(options.chapters):
        problem = update(path)
        print(f"{path.name}: {problem or 'executed'}", flush=True)
        (failed if problem else done).append(path)
    if options.copy:
        options.copy.mkdir(parents=True, exist_ok=True)
        for path in done:
            shutil.copy(path, options.copy)
    if backend.GPU and done:
        print("once more with the GPU hidden, comparing outputs", flush=True)
        hidden = chapters.environment(CUDA_VISIBLE_DEVICES="")
        failed += [done] if subprocess.run(chapters.nbval(done), env=hidden).returncode else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The one form in which a chapter's file is kept, so that a diff shows what changed and no more.

`python -m kernelbook.course.format [--check] [chapter ...]`
"""

import argparse
import json
import sys
from pathlib import Path

from kernelbook.course import chapters

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
# Everything else that editors leave in a cell's metadata is a fact of their session.
KEPT = ("tags", "nbgrader")
WIDGET = "application/vnd.jupyter.widget-view+json"
INSTEAD_OF_WIDGET = "(interactive: run this cell to use it)"


def lines(text) -> list[str]:
    """Text as notebooks store it: a list of lines with their ends."""
    return "".join(text).splitlines(keepends=True)


def joined_streams(outputs: list[dict]) -> list[dict]:
    """Outputs with neighboring pieces of one stream joined: where they broke is chance."""
    joined: list[dict] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        is_stream = output["output_type"] == "stream"
        if is_stream and last.get("name") == output["name"]:
            last["text"] = "".join(last["text"]) + "".join(output["text"])
        else:
            joined.append(dict(output))
    return joined


def canonical_output(output: dict) -> dict:
    """One output: text as lines, and a note in place of a widget, whose state is not kept."""
    if "text" in output:
        output = output | {"text": lines(output["text"])}
    if "data" not in output:
        return output
    data = output["data"]
    if WIDGET in data:
        data = {"text/plain": INSTEAD_OF_WIDGET}
    data = {
        kind: lines(value) if kind.startswith("text/") or kind == "image/svg+xml" else value
        for kind, value in data.items()
    }
    return output | {"data": data}


def canonical_cell(cell: dict, number: int) -> dict:
    """One cell: numbered id, known metadata, source without blanks at its end."""
    metadata = {key: cell["metadata"][key] for key in KEPT if cell["metadata"].get(key)}
    if "tags" in metadata:
        metadata["tags"] = sorted(set(metadata["tags"]))
    kept = {"cell_type": cell["cell_type"], "id": f"cell-{number:02d}", "metadata": metadata}
    kept["source"] = lines("".join(cell["source"]).rstrip())
    if cell.get("attachments"):
        kept["attachments"] = cell["attachments"]
    if cell["cell_type"] == "code":
        kept["execution_count"] = cell.get("execution_count")
        kept["outputs"] = [canonical_output(output) for output in joined_streams(cell["outputs"])]
    return kept


def canonical(notebook: dict) -> str:
    """The text of the notebook's file: sorted keys, no session's facts, no Python version."""
    cells = [canonical_cell(cell, number) for number, cell in enumerate(notebook["cells"], 1)]
    whole = {
        "cells": cells,
        "metadata": {"kernelspec": KERNEL, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def is_canonical(path: Path) -> bool:
    return path.read_text(encoding="utf-8") == canonical(chapters.read(path))


def write(path: Path, notebook: dict) -> None:
    """Writes the notebook's canonical text, in one step, so that a stop leaves the old file."""
    new = path.with_suffix(".new")
    new.write_text(canonical(notebook), encoding="utf-8")
    new.replace(path)


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say which are not")
    parser.add_argument("chapters", nargs="*")
    options = parser.parse_args(arguments)
    others = [path for path in chapters.find(options.chapters) if not is_canonical(path)]
    for path in others:
        if options.check:
            print(f"{path.name}: not in canonical form; `make format` rewrites it")
        else:
            write(path, chapters.read(path))
            print(f"{path.name}: rewritten")
    return 1 if options.check and others else 0


if __name__ == "__main__":
    sys.exit(main())

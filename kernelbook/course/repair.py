"""A submission beside the lab it came from: test cells put back, and what was wrong named."""

import copy
from pathlib import Path

import nbformat


class Unusable(Exception):
    """A submission that cannot be graded at all, with the reason."""


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook at `path`, or Unusable with the reason in plain words."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"not a notebook: {_first_line(error)}") from None
    if not text.strip():
        raise Unusable("not a notebook: the file is empty")
    try:
        notebook = nbformat.reads(text, as_version=4)
        cells = [(cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]
        assert all(isinstance(source, str) for _, source, _ in cells)
    except Exception as error:
        raise Unusable(f"not a notebook: {_first_line(error)}") from None
    return notebook


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def grade_id(cell) -> str | None:
    grader = cell.metadata.get("nbgrader")
    return grader.get("grade_id") if isinstance(grader, dict) else None


def is_students(cell) -> bool:
    """Is this one of the lab's cells that the student fills in?"""
    return bool(cell.metadata.nbgrader.solution)


def repair(submission, release) -> tuple[nbformat.NotebookNode, list[str]]:
    """The submission with the lab's own cells as they were handed out, and what was changed.

    The student's answers and extra cells stay where they are. Test cells and given cells come
    from `release`: an edited one is replaced, a second copy is dropped, a missing one is put back
    after the cell it followed.
    """
    originals = {grade_id(cell): cell for cell in release.cells if grade_id(cell)}
    found = [grade_id(cell) for cell in submission.cells]
    if not originals.keys() & set(found):
        raise Unusable("none of this lab's cells are in it: is it another notebook?")
    cells, notes = [], []
    for index, cell in enumerate(submission.cells):
        kept, note = _keep(cell, originals, again=grade_id(cell) in found[index + 1 :])
        cells += [kept] if kept else []
        notes += [note] if note else []
    notes += _put_back(cells, originals)
    notebook = copy.deepcopy(release)
    notebook.cells = cells
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    return notebook, notes


def _keep(cell, originals, again: bool):
    """The cell to grade in place of `cell`, or None, and a note."""
    name = grade_id(cell)
    if name not in originals:
        return _plain(cell), None
    original = copy.deepcopy(originals[name])
    if not is_students(original):
        if again:
            return None, f"the cell {name!r} is there twice: one was dropped"
        edited = cell.source.strip() != original.source.strip()
        return original, f"the cell {name!r} was edited: graded with the original" * edited or None
    if again:
        return _plain(cell), f"the answer {name!r} is there twice: the last one counts"
    original.source = cell.source
    return original, None


def _plain(cell):
    """A cell of the student's own; Markdown and raw cells are kept as they are."""
    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    return make.get(cell.cell_type, nbformat.v4.new_raw_cell)(cell.source)


def _put_back(cells: list, originals: dict) -> list[str]:
    """Insert missing cells of the lab after the lab's cell before them."""
    notes, before = [], None
    for name, original in originals.items():
        if name not in [grade_id(cell) for cell in cells]:
            places = [i for i, cell in enumerate(cells) if grade_id(cell) == before]
            cells.insert(places[0] + 1 if places and before else 0, copy.deepcopy(original))
            notes.append(f"the cell {name!r} was deleted: put back")
        before = name
    return notes

"""Faults planted in a chapter's own kernel, and what nbval then says about its cells.

Each copy of a chapter's Build and Verify differs from it in one place. All copies run in one call
of nbval, one kernel at a time, since starts can collide.
"""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import synthetic

from kernelbook.course import chapters, form


@dataclass(frozen=True)
class Fault:
    """One edit of the kernel; the cells it turns red, each by something that only it contains,
    and a line that one of them then prints."""

    old: str
    new: str
    red: tuple[str, ...]
    line: str


def build_and_verify(chapter: Path) -> dict:
    """The chapter's imports, Build and Verify, without what measures or plots."""
    notebook = chapters.read(chapter)
    imports = chapters.code_cells(notebook)[0]
    cells = [
        cell
        for heading, cell in form.sections(notebook)
        if heading in ("Build", "Verify") and cell["cell_type"] == "code"
    ]
    return notebook | {"cells": [imports, *(c for c in cells if not chapters.is_ignored(c))]}


def plant(notebook: dict, fault: Fault) -> dict:
    """A copy with the fault in its one place, in a cell that holds a kernel."""
    copy = json.loads(json.dumps(notebook))
    places = [cell for cell in copy["cells"] if fault.old in cell["source"]]
    assert sum(cell["source"].count(fault.old) for cell in copy["cells"]) == 1
    assert "@triton.jit" in places[0]["source"]
    places[0]["source"] = places[0]["source"].replace(fault.old, fault.new)
    return copy


def run(folder: Path, chapter: Path, faults: dict[str, Fault]) -> dict[str, dict[int, str]]:
    """{fault: {number of a red cell: nbval's words}} of one run over the spoilt copies."""
    for name, fault in faults.items():
        spoilt = plant(build_and_verify(chapter), fault)
        synthetic.save(folder / name / f"{name}.ipynb", spoilt)
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", str(folder)]
    command += ["-p", "no:cacheprovider", "-vv"]
    command += [f"--rootdir={folder}", f"--junitxml={folder}/report.xml"]
    environment = chapters.environment(OMP_NUM_THREADS="1")
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    return read(folder / "report.xml", faults)


def read(report: Path, faults) -> dict[str, dict[int, str]]:
    """The red cells of each copy, from pytest's report."""
    red = {name: {} for name in faults}
    for case in ElementTree.parse(report).iter("testcase"):
        (name,) = (name for name in faults if name in case.get("classname"))
        for outcome in (*case.iter("failure"), *case.iter("error")):
            red[name][int(case.get("name").split()[-1])] = outcome.text
    return red


def cells_of(notebook: dict, marks: tuple[str, ...]) -> set[int]:
    """Numbers of the cells that the marks name, one each."""
    cells = notebook["cells"]
    found = {i for i, cell in enumerate(cells) if any(mark in cell["source"] for mark in marks)}
    assert len(found) == len(marks)
    return found

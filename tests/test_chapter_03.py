"""A fault planted in chapter 03's own kernel makes the cells of Verify print a wrong number.

Each copy differs from the chapter in one place, runs without an exception, and nbval finds the
wrong outputs in exactly the cells that are about that fault.
"""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import pytest
import synthetic

from kernelbook.course import chapters, form

CHAPTER = chapters.NOTEBOOKS / "03_tiled_attention.ipynb"

# A cell of Verify by something that only it contains.
LENGTHS, CAUSAL, RISING = "in DTYPES.items():\n    for queries", '"causal, {heads}', "that rise"
ERRORS, TREE, TEXT = "no larger than naive's", "branch to draft", "swapped_text"


@dataclass(frozen=True)
class Fault:
    """One edit of the kernel; the cells it turns red, and a line that one of them then prints."""

    old: str
    new: str
    red: tuple[str, ...]
    line: str


FAULTS = {
    "rescale_dropped": Fault(
        "acc = acc * rescale[:, None]",
        "acc = acc * 1.0",
        (LENGTHS, CAUSAL, RISING, ERRORS, TREE, TEXT),
        "scores that rise along the row: wrong: relative error",
    ),
    "causal_mask_off_by_one": Fault(
        "j[None, :] <= i[:, None] + past",
        "j[None, :] < i[:, None] + past",
        (CAUSAL, ERRORS, TREE, TEXT),
        "causal, 4 query and 2 KV heads, 70 queries, 70 keys: wrong: relative error",
    ),
    "last_partial_block_skipped": Fault(
        "range(0, end, BLOCK_N)",
        "range(0, end // BLOCK_N * BLOCK_N, BLOCK_N)",
        (LENGTHS, CAUSAL, TREE, TEXT),
        "33 queries 130 keys, head_dim 64: wrong: relative error",
    ),
}


def build_and_verify() -> dict:
    """The chapter's imports, Build and Verify, without what measures or plots."""
    notebook = chapters.read(CHAPTER)
    imports = chapters.code_cells(notebook)[0]
    cells = [
        cell
        for heading, cell in form.sections(notebook)
        if heading in ("Build", "Verify") and cell["cell_type"] == "code"
    ]
    return notebook | {"cells": [imports, *(c for c in cells if not chapters.is_ignored(c))]}


def plant(notebook: dict, fault: Fault) -> dict:
    """A copy with the fault in its one place, in the section that builds the kernel."""
    copy = json.loads(json.dumps(notebook))
    places = [cell for cell in copy["cells"] if fault.old in cell["source"]]
    assert sum(cell["source"].count(fault.old) for cell in copy["cells"]) == 1
    assert "@triton.jit" in places[0]["source"]
    places[0]["source"] = places[0]["source"].replace(fault.old, fault.new)
    return copy


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, dict[int, str]]:
    """One run of nbval over the spoilt copies: for each, what it says about each red cell."""
    folder = tmp_path_factory.mktemp("faults")
    for name, fault in FAULTS.items():
        synthetic.save(folder / name / f"{name}.ipynb", plant(build_and_verify(), fault))
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", str(folder)]
    command += ["-p", "no:cacheprovider", "-vv"]  # one kernel at a time: starts can collide
    command += [f"--rootdir={folder}", f"--junitxml={folder}/report.xml"]
    environment = chapters.environment(OMP_NUM_THREADS="1")
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode == 1, run.stdout + run.stderr
    return read(folder / "report.xml")


def read(report: Path) -> dict[str, dict[int, str]]:
    """{fault: {number of a red cell: nbval's words}}, from pytest's report."""
    red = {name: {} for name in FAULTS}
    for case in ElementTree.parse(report).iter("testcase"):
        (name,) = (name for name in FAULTS if name in case.get("classname"))
        for outcome in (*case.iter("failure"), *case.iter("error")):
            red[name][int(case.get("name").split()[-1])] = outcome.text
    return red


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_kernel_turns_its_cells_red(reports, name):
    cells, fault = build_and_verify()["cells"], FAULTS[name]
    expected = {
        i for i, cell in enumerate(cells) if any(mark in cell["source"] for mark in fault.red)
    }
    assert len(expected) == len(fault.red)
    assert set(reports[name]) == expected


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_shows_as_a_wrong_number_and_not_as_an_exception(reports, name):
    words = reports[name].values()
    assert all("caused an exception" not in said for said in words)
    assert any(FAULTS[name].line in said for said in words)

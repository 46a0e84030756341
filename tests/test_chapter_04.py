"""A fault planted in chapter 04's kernels, or in the tuned one, makes Verify print a wrong number.

Each copy differs from the course in one place, runs without an exception, and nbval finds the
wrong outputs in exactly the cells that are about that fault.
"""

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import pytest
import synthetic

from kernelbook.course import chapters, form

CHAPTER = chapters.NOTEBOOKS / "04_split_kv_decode.ipynb"
TUNED_FILES = ("_split_kv.py", "_kv_tiles.py")

# A cell of Verify by something that only it contains.
LENGTHS, EMPTY, RISING = "in DTYPES.items():\n    for heads", "([40, 40], 8)", "that rise"
TUNED, COMPILED, TEXT = "in FORMS.items()", "compile_launches", "swapped_text"


@dataclass(frozen=True)
class Fault:
    """One edit; the cells it turns red, and a line that one of them then prints."""

    old: str
    new: str
    red: tuple[str, ...]
    line: str


IN_THE_CHAPTER = {
    "merge_does_not_rescale": Fault(
        "weight = tl.exp(e - tl.max(e, axis=0))",
        "weight = tl.where(written, 1.0, 0.0)",
        (LENGTHS, EMPTY, RISING, TEXT),
        "scores that rise along the cache: wrong: relative error",
    ),
    "last_partial_block_skipped": Fault(
        "end = tl.minimum(begin + each, length)",
        "end = tl.minimum(begin + each, length // BLOCK_N * BLOCK_N)",
        (LENGTHS, EMPTY, TEXT),
        "8 query heads on 2 KV heads, 200 tokens, 3 splits: wrong: relative error",
    ),
    "empty_splits_weighed": Fault(
        "mask=written[:, None]",
        "mask=(split < splits)[:, None]",
        (LENGTHS, EMPTY),
        "lengths [40, 40] in 8 splits: wrong: 256 of 256 elements are NaN",
    ),
}
IN_KERNELS = {
    "tuned_merge_without_weights": Fault(
        "weight = tl.math.exp2(log - base[None, :])",
        "weight = tl.where(there, 1.0, 0.0)",
        (TUNED,),
        "lengths [300, 1, 128, 259] in 4 splits: wrong: relative error",
    ),
    "tuned_partial_tile_ignored": Fault(
        "tiles = tl.cdiv(length, BLOCK_N)",
        "tiles = length // BLOCK_N",
        (TUNED,),
        "lengths [300, 1, 128, 259] in 4 splits: wrong: relative error",
    ),
    "tuned_unwritten_parts_read": Fault(
        "(part < used)[:, None]",
        "(part < splits)[:, None]",
        (TUNED,),
        "elements are NaN or infinite",
    ),
}
FAULTS = IN_THE_CHAPTER | IN_KERNELS


def has(cell: dict, *marks: str) -> bool:
    return any(mark in cell["source"] for mark in marks)


def part_about(name: str) -> dict:
    """The chapter's imports, and what of Build and Verify is about the fault's kernel."""
    notebook = chapters.read(CHAPTER)
    imports = chapters.code_cells(notebook)[0]
    cells = [
        cell
        for heading, cell in form.sections(notebook)
        if heading in ("Build", "Verify") and cell["cell_type"] == "code"
    ]
    cells = [cell for cell in cells if not chapters.is_ignored(cell)]
    if name in IN_KERNELS:
        cells = [cell for cell in cells if has(cell, "@triton.jit", "def split", LENGTHS, TUNED)]
    else:
        cells = [cell for cell in cells if not has(cell, TUNED, COMPILED)]
    return notebook | {"cells": [imports, *cells]}


def edited(text: str, fault: Fault) -> str:
    """The text with its one place changed."""
    assert text.count(fault.old) == 1, f"{fault.old!r} must stand there exactly once"
    return text.replace(fault.old, fault.new)


def plant_in_chapter(notebook: dict, fault: Fault) -> dict:
    """A copy of the notebook with the fault in one of its kernels."""
    copy = json.loads(json.dumps(notebook))
    (kernel,) = (cell for cell in copy["cells"] if fault.old in cell["source"])
    assert "@triton.jit" in kernel["source"]
    kernel["source"] = edited(kernel["source"], fault)
    return copy


def plant_in_kernels(notebook: dict, fault: Fault, folder: Path) -> dict:
    """A copy of the notebook that imports a copy of the package with the fault."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(chapters.ROOT / "kernelbook", folder / "kernelbook", ignore=ignored)
    (folder / "data").symlink_to(chapters.ROOT / "data")
    files = [folder / "kernelbook" / "kernels" / name for name in TUNED_FILES]
    (file,) = (file for file in files if fault.old in file.read_text())
    file.write_text(edited(file.read_text(), fault))
    copy = json.loads(json.dumps(notebook))
    first = copy["cells"][0]
    first["source"] = f"import sys\nsys.path.insert(0, {str(folder)!r})\n{first['source']}"
    return copy


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, dict[int, str]]:
    """One run of nbval over the spoilt copies: for each, what it says about each red cell."""
    folder = tmp_path_factory.mktemp("faults")
    for name, fault in FAULTS.items():
        home = folder / name
        notebook = part_about(name)
        if name in IN_KERNELS:
            copy = plant_in_kernels(notebook, fault, home)
        else:
            copy = plant_in_chapter(notebook, fault)
        synthetic.save(home / f"{name}.ipynb", copy)
    files = [str(folder / name / f"{name}.ipynb") for name in FAULTS]
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", *files]
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
def test_a_fault_in_a_kernel_turns_its_cells_red(reports, name):
    cells, fault = part_about(name)["cells"], FAULTS[name]
    expected = {i for i, cell in enumerate(cells) if has(cell, *fault.red)}
    assert len(expected) == len(fault.red)
    assert set(reports[name]) == expected


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_shows_as_a_wrong_number_and_not_as_an_exception(reports, name):
    words = reports[name].values()
    assert all("caused an exception" not in said for said in words)
    assert any(FAULTS[name].line in said for said in words)

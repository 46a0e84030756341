"""Every lab through `make grade`, whole: the solution, the untouched lab and one wrong answer."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import lab_harness
import nbformat
import pytest
from lab_harness import ROOT

LABS = lab_harness.labs()
LABS_FOLDER = ROOT / "labs"


def make_grade(submissions: Path, out: Path) -> dict:
    """`make grade` on a folder: {(student, lab): row of grades.csv}."""
    command = [sys.executable, "-m", "kernelbook.course.grade", str(submissions)]
    command += ["--out", str(out), "--jobs", "2", "--seed", "tests"]
    # A busy machine must not turn a right solution into a time-out.
    patient = {**os.environ, "KERNELBOOK_CELL_SECONDS": "60"}
    done = subprocess.run(command, cwd=ROOT, env=patient, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with (out / "grades.csv").open() as file:
        return {(row["student"], row["lab"]): row for row in csv.DictReader(file)}


def submit(folder: Path, student: str, lab: str, answers: dict[str, str]) -> None:
    """The lab as handed out, with answers filled in."""
    notebook = lab_harness.notebook(lab, LABS_FOLDER)
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell.source = answers.get(name, cell.source)
    path = folder / student / lab / f"{lab}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """Every lab's solution, untouched lab and first wrong answer through `make grade`."""
    folder = tmp_path_factory.mktemp("whole")
    submissions = folder / "submissions"
    for lab in LABS:
        solved = lab_harness.answers(lab)
        wrong = lab_harness.wrong_answers(lab)[0]
        submit(submissions, "solution", lab, solved)
        submit(submissions, "wrong", lab, solved | {wrong.cell: wrong.source})
        shutil.copytree(LABS_FOLDER / lab, submissions / "untouched" / lab)
    return make_grade(submissions, folder / "out")


@pytest.mark.parametrize("lab", LABS)
def test_nbgrader_gives_the_solution_full_marks_and_the_untouched_lab_none(lab, whole):
    full = whole["solution", lab]
    assert full["points"] == full["out_of"] != "0" and full["note"] == ""
    assert whole["untouched", lab]["points"] == "0"
    assert whole["untouched", lab]["note"] == ""


@pytest.mark.parametrize("lab", LABS)
def test_nbgrader_refuses_a_wrong_answer_as_the_harness_does(lab, whole):
    wrong = lab_harness.wrong_answers(lab)[0]
    tests = lab_harness.points(lab)
    earned = [float(whole["wrong", lab][f"task{number + 1}"]) for number in range(len(tests))]
    assert earned == list((tests | {wrong.test: wrong.points}).values())

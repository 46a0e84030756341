"""`make grade`: a broken submission harms no other and is named with its reason."""

import copy
import csv
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from lab_harness import ROOT
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from kernelbook.course import grade

LAB = "lab90_tiny"
SECONDS = "6"
HIDDEN_TEST = """### BEGIN HIDDEN TESTS
assert double(7) == 14
### END HIDDEN TESTS
"""
TEST_TWO = """earned = 3 if negate(2) == -2 else 1
earned"""


def tiny_lab(hidden=""):
    """A lab without torch, so that grading it takes a second; solved, as handed out."""

    def cell(name, source, points=None, solution=False):
        made = new_code_cell(source)
        grader = {"grade_id": name, "solution": solution, "grade": points is not None}
        grader |= {"locked": not solution, "schema_version": 3, "task": False}
        grader |= {"points": points} if points else {}
        made.metadata["nbgrader"] = grader
        return made

    double = "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION"
    negate = "### BEGIN SOLUTION\ndef negate(x):\n    return -x\n\n\n### END SOLUTION"
    cells = [
        cell("tiny_setup", "import sys"),
        new_markdown_cell("Double a number."),
        cell("tiny_task1", double, solution=True),
        cell("tiny_task1_test", f"assert double(2) == 4\n{hidden}2", points=2),
        cell("tiny_task2", negate, solution=True),
        cell("tiny_task2_test", TEST_TWO, points=3),
    ]
    notebook = new_notebook(cells=cells)
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "name": "python3"}}
    return notebook


def named(notebook, name):
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == name)


def with_answer(name, source):
    """A submission that is right but for one answer."""
    notebook = tiny_lab()
    named(notebook, name).source = source
    return notebook


def without(name):
    notebook = tiny_lab()
    notebook.cells.remove(named(notebook, name))
    return notebook


def doubled(name):
    notebook = tiny_lab()
    again = copy.deepcopy(named(notebook, name))
    again.id = "again"
    notebook.cells.append(again)
    return notebook


def edited():
    notebook = with_answer("tiny_task1", "def double(x):\n    return 0")
    test = named(notebook, "tiny_task1_test")
    test.source, test.metadata["tags"] = "2", ["skip-execution"]
    test.metadata.nbgrader["points"] = 100
    return notebook


HIDES_RESULTS = "def negate(x):\n    sys.displayhook = lambda value: None\n    return x"
HIDES_RESULTS += "\nget_ipython().ast_node_interactivity = 'none'"
WARNS = "def double(x):\n    print('careful', file=sys.stderr)\n    return 2 * x"
ENDLESS = "def double(x):\n    while True:\n        try:\n            print('again' * 99)\n"
ENDLESS += "        except BaseException:\n            pass"
DIES = "def negate(x):\n    import os\n    os._exit(1)"

KILLS = "def negate(x):\n    import os\n    os.kill(os.getppid(), 9)\n    return x"

#   student: (what is submitted, points, fragment of the note)
SUBMISSIONS = {
    "anna": (tiny_lab(), 5, ""),
    "crashes": (with_answer("tiny_task2", DIES), 2, "'tiny_task2_test' ended the Python process"),
    "deletes a test": (without("tiny_task1_test"), 5, "'tiny_task1_test' was deleted: put back"),
    "deletes an answer": (without("tiny_task1"), 3, "'tiny_task1' was deleted"),
    "doubles a test": (doubled("tiny_task1_test"), 5, "'tiny_task1_test' is there twice"),
    "doubles an answer": (doubled("tiny_task2"), 5, "the last one counts"),
    "edits a test": (edited(), 3, "'tiny_task1_test' was edited: graded with the original"),
    "empty": ("", 0, "the file is empty"),
    "hides results": (with_answer("tiny_task2", HIDES_RESULTS), 2, "ended without a score"),
    "kills its grader": (with_answer("tiny_task2", KILLS), 0, "it ended the grading process"),
    "loops": (
        with_answer("tiny_task1", ENDLESS),
        0,
        f"'tiny_task1_test' ran longer than {SECONDS} s",
    ),
    "not a notebook": ("# my answers", 0, "not a notebook"),
    "other json": (json.dumps({"cells": 3}), 0, "not a notebook"),
    "other lab": (new_notebook(cells=[new_code_cell("1")]), 0, "none of this lab's cells"),
    "syntax error": (with_answer("tiny_task1", "def double(x:"), 3, ""),
    "warns": (with_answer("tiny_task1", WARNS), 5, ""),
    "zoé [2]": (with_answer("tiny_task2", "def negate(x):\n    return x"), 3, ""),
}


def digests(folder: Path) -> dict[str, str]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def run_grade(submissions: Path, out: Path, solutions: Path, **environment):
    command = [sys.executable, "-m", "kernelbook.course.grade", str(submissions)]
    options = ["--out", str(out), "--solutions", str(solutions), "--jobs", "3"]
    settings = {**os.environ, "KERNELBOOK_CELL_SECONDS": SECONDS, **environment}
    return subprocess.run(command + options, cwd=ROOT, env=settings, capture_output=True, text=True)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grade")
    source = folder / "solutions" / LAB / f"{LAB}.ipynb"
    source.parent.mkdir(parents=True)
    nbformat.write(tiny_lab(HIDDEN_TEST), source)
    submissions = folder / "submissions"
    for student, (content, _, _) in SUBMISSIONS.items():
        path = submissions / student / LAB / f"{LAB}.ipynb"
        path.parent.mkdir(parents=True)
        if isinstance(content, str):
            path.write_text(content)
        else:
            nbformat.write(content, path)
    (submissions / "other name" / LAB).mkdir(parents=True)
    nbformat.write(tiny_lab(), submissions / "other name" / LAB / "Untitled.ipynb")
    (submissions / "wrong lab" / "lab91_none").mkdir(parents=True)
    (submissions / "no folder").mkdir()
    nbformat.write(tiny_lab(), submissions / "no folder" / f"{LAB}.ipynb")
    before = digests(submissions)
    done = run_grade(submissions, folder / "out", folder / "solutions")
    assert done.returncode == 0, done.stdout + done.stderr
    with (folder / "out" / "grades.csv").open() as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    return folder, rows, done, before


@pytest.mark.parametrize("student", SUBMISSIONS)
def test_points_and_reason(graded, student):
    _, points, fragment = SUBMISSIONS[student]
    row = graded[1][student]
    assert (float(row["points"]), row["out_of"]) == (points, "5"), row
    assert (fragment in row["note"]) if fragment else row["note"] == ""


def test_a_wrong_name_is_named(graded):
    assert "expected lab90_tiny.ipynb, found Untitled.ipynb" in graded[1]["other name"]["note"]
    assert "expected a folder for each lab, found lab90" in graded[1]["no folder"]["note"]
    assert "no lab of this name; there are lab90_tiny" in graded[1]["wrong lab"]["note"]


def test_after_a_time_out_the_rest_is_skipped_and_says_so(graded):
    folder, rows, _, _ = graded
    assert rows["loops"]["task2"] == "0"
    page = (folder / "out" / rows["loops"]["feedback"]).read_text()
    assert "the rest of this notebook is skipped" in page and "not run: " in page


def test_each_submission_has_feedback_without_the_hidden_tests(graded):
    folder, rows, _, _ = graded
    for row in rows.values():
        page = (folder / "out" / row["feedback"]).read_text()
        assert "double(7)" not in page
        assert "HIDDEN" not in page
        assert len(page) > 100


def test_the_bar_counts_and_every_reason_is_printed(graded):
    _, rows, done, _ = graded
    assert f"{len(rows)}/{len(rows)}" in done.stderr
    for row in rows.values():
        assert row["note"] in done.stdout


def test_submissions_are_left_as_they_were(graded):
    folder, _, _, before = graded
    assert digests(folder / "submissions") == before


def test_bad_input_is_refused_and_loses_nothing(graded, tmp_path):
    submissions = graded[0] / "submissions"
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    for folder, out, reason in [
        (tmp_path / "none", tmp_path / "out", "no folder student/lab"),
        (submissions, tmp_path, "holds other files"),
        (submissions, submissions / "out", "overlaps the submissions"),
        (submissions, submissions.parent, "overlaps the submissions"),
    ]:
        with pytest.raises(SystemExit, match=reason):
            grade.main([str(folder), "--out", str(out)])
    assert mine.read_text() == "precious"

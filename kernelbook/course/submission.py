"""Grading one submission, in a course folder of its own."""

import html
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbgrader.api import Gradebook
from nbgrader.converters import Autograde, GenerateFeedback

from kernelbook.course.labs import configuration, convert, copy_lab, names
from kernelbook.course.repair import Unusable, read, repair

CELL_SECONDS = 10


@dataclass
class Grade:
    """One submission's result; `tasks` maps a test cell's id to (points, out of)."""

    student: str
    lab: str
    tasks: dict[str, tuple[float, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    feedback: str = ""

    @property
    def points(self) -> float:
        return sum(points for points, _ in self.tasks.values())

    @property
    def out_of(self) -> float:
        return sum(most for _, most in self.tasks.values())


def notebook_path(folder: Path, lab: str) -> Path:
    """The submitted notebook; Unusable where there is none of the lab's name."""
    path = folder / f"{lab}.ipynb"
    if path.is_file():
        return path
    raise Unusable(f"expected {lab}.ipynb, found {_listing(folder)}")


def _listing(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())) or "an empty folder"


def grade_one(submissions: Path, student: str, lab: str, template: Path, out: Path) -> Grade:
    """Grade one submission; whatever goes wrong ends in its own notes."""
    grade = Grade(student, lab)
    page = out / "feedback" / student / f"{lab or 'no lab'}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    grade.feedback = str(page.relative_to(out))
    try:
        if not lab:
            raise Unusable(
                f"expected a folder for each lab, found {_listing(submissions / student)}"
            )
        released = template / "labs" / lab / f"{lab}.ipynb"
        if not released.is_file():
            raise Unusable(f"no lab of this name; there are {', '.join(names(template / 'labs'))}")
        release = nbformat.read(released, as_version=4)
        grade.tasks = {cell: (0.0, most) for cell, most in test_points(release).items()}
        submission = read(notebook_path(submissions / student / lab, lab))
        notebook, grade.notes = repair(submission, release)
        # A path of our own: nbgrader takes [, ] and * in names for patterns.
        with tempfile.TemporaryDirectory(prefix="grade-") as course:
            _run_nbgrader(grade, notebook, template, Path(course), page)
    except Unusable as reason:
        grade.notes.append(str(reason))
    except Exception as error:
        grade.notes.append(f"could not be graded: {type(error).__name__}: {error}")
    if not page.exists():
        page.write_text(page_of_reasons(grade))
    return grade


def test_points(release) -> dict[str, float]:
    """Points of each test cell of a lab, in order."""
    graders = [cell.metadata.get("nbgrader", {}) for cell in release.cells]
    return {
        grader["grade_id"]: float(grader["points"]) for grader in graders if grader.get("grade")
    }


def _run_nbgrader(grade: Grade, notebook, template: Path, course: Path, page: Path) -> None:
    """nbgrader's autograding and feedback, in a course folder that holds this submission alone."""
    shutil.copy(template / "gradebook.db", course)
    copy_lab(template / "solutions" / grade.lab, course / "solutions" / grade.lab)
    submitted = course / "submitted" / "student" / grade.lab / f"{grade.lab}.ipynb"
    submitted.parent.mkdir(parents=True)
    nbformat.write(notebook, submitted)
    config = configuration(course)
    config.ExecuteUntilStuck.timeout = int(os.getenv("KERNELBOOK_CELL_SECONDS", CELL_SECONDS))
    convert(Autograde, config, grade.lab, student_id="student")
    _read_points(grade, config.CourseDirectory.db_url)
    autograded = course / "autograded" / "student" / grade.lab / f"{grade.lab}.ipynb"
    grade.notes += _stops(nbformat.read(autograded, as_version=4))
    convert(GenerateFeedback, config, grade.lab, student_id="student")
    shutil.copy(course / "feedback" / "student" / grade.lab / f"{grade.lab}.html", page)


def _read_points(grade: Grade, database: str) -> None:
    with Gradebook(database) as gradebook:
        submission = gradebook.find_submission_notebook(grade.lab, grade.lab, "student")
        for entry in submission.grades:
            grade.tasks[entry.name] = (entry.score, entry.max_score)


def _stops(notebook) -> list[str]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    named = ("Stopped", "NoScore")
    return [o.evalue for o in outputs if o.output_type == "error" and o.ename in named]


def page_of_reasons(grade: Grade) -> str:
    reasons = "".join(f"<li>{html.escape(note)}</li>" for note in grade.notes)
    title = html.escape(f"{grade.lab}: {grade.points:g} of {grade.out_of:g} points")
    head = f"<!doctype html><meta charset='utf-8'><title>{title}</title>"
    return f"{head}<h1>{title}</h1><ul>{reasons}</ul>\n"

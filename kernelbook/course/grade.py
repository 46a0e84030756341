"""`make grade SUBMISSIONS=folder`: grades.csv and HTML feedback for student/lab/lab.ipynb.

nbgrader does the grading. This adds what it lacks: every submission is graded in a process and a
course folder of its own, so that none harms another; what is broken is named with its reason.
Submissions are read, never written. Notebooks are run as they are: there is no sandbox, so grade
in a container or on a machine without anything to lose.
"""

import argparse
import csv
import html
import logging
import multiprocessing
import os
import secrets
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbgrader.api import Gradebook
from nbgrader.converters import Autograde, GenerateAssignment, GenerateFeedback
from tqdm import tqdm

from kernelbook.course.labs import ROOT, configuration, convert, copy_lab, names
from kernelbook.course.repair import Unusable, read, repair

CELL_SECONDS = 10
# Processes are forked from one that has imported this module and started nothing.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["kernelbook.course.grade"])


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


def find(submissions: Path) -> list[tuple[str, str]]:
    """(student, lab) of every folder two levels down, in order."""
    folders = sorted(path for path in submissions.glob("*/*") if path.is_dir())
    return [(path.parent.name, path.name) for path in folders if path.name[0] != "."]


def prepare(solutions: Path, template: Path) -> None:
    """A course folder with every lab, as handed out and in a gradebook."""
    config = configuration(template)
    for lab in names(solutions):
        copy_lab(solutions / lab, template / "solutions" / lab)
        convert(GenerateAssignment, config, lab)


def notebook_path(folder: Path, lab: str) -> Path:
    """The submitted notebook; Unusable where there is none of the lab's name."""
    path = folder / f"{lab}.ipynb"
    if path.is_file():
        return path
    found = ", ".join(sorted(other.name for other in folder.iterdir())) or "an empty folder"
    raise Unusable(f"expected {lab}.ipynb, found {found}")


def grade_one(submissions: Path, student: str, lab: str, template: Path, out: Path) -> Grade:
    """Grade one submission; whatever goes wrong ends in its own notes."""
    grade = Grade(student, lab)
    page = out / "feedback" / student / f"{lab}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    grade.feedback = str(page.relative_to(out))
    try:
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
        page.write_text(_page_of_reasons(grade))
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


def _page_of_reasons(grade: Grade) -> str:
    reasons = "".join(f"<li>{html.escape(note)}</li>" for note in grade.notes)
    title = html.escape(f"{grade.lab}: {grade.points:g} of {grade.out_of:g} points")
    head = f"<!doctype html><meta charset='utf-8'><title>{title}</title>"
    return f"{head}<h1>{title}</h1><ul>{reasons}</ul>\n"


def write_csv(grades: list[Grade], path: Path) -> None:
    """One row a submission, one column a task."""
    most = max((len(grade.tasks) for grade in grades), default=0)
    tasks = [f"task{number + 1}" for number in range(most)]
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["student", "lab", "points", "out_of", *tasks, "note", "feedback"])
        for grade in grades:
            earned = [f"{points:g}" for points, _ in grade.tasks.values()]
            earned += [""] * (most - len(earned))
            note = "; ".join(grade.notes)
            total = [f"{grade.points:g}", f"{grade.out_of:g}"]
            rows.writerow([grade.student, grade.lab, *total, *earned, note, grade.feedback])


def _quiet(out: Path) -> None:
    """nbgrader's own log goes to a file; the screen shows the bar and the result."""
    log = logging.getLogger("traitlets")
    log.handlers[:] = [logging.FileHandler(out / "nbgrader.log")]
    log.propagate = False


def environment(seed: str) -> dict[str, str]:
    """What a submission's process sees: no GPU (the same grade everywhere), one thread."""
    return {
        "KERNELBOOK_SEED": seed,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "JUPYTER_PLATFORM_DIRS": "1",
    }


def grade_all(submissions: Path, out: Path, solutions: Path, jobs: int, seed: str) -> list[Grade]:
    """Grade a folder of student/lab/lab.ipynb into `out`; the order is the folder's."""
    os.environ.update(environment(seed))
    found = find(submissions)
    with tempfile.TemporaryDirectory(prefix="grade-") as folder, ThreadPoolExecutor(jobs) as pool:
        template = Path(folder)
        prepare(solutions, template)
        futures = [pool.submit(_isolated, submissions, *key, template, out) for key in found]
        for _ in tqdm(as_completed(futures), total=len(futures), desc="grading", unit="lab"):
            pass
    return [future.result() for future in futures]


def _isolated(submissions: Path, student: str, lab: str, template: Path, out: Path) -> Grade:
    """`grade_one` in a process of its own; if that process dies, a grade that says so."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    arguments = (sender, submissions, student, lab, template, out)
    process = PROCESSES.Process(target=_grade_and_send, args=arguments)
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        release = nbformat.read(template / "labs" / lab / f"{lab}.ipynb", as_version=4)
        nothing = {cell: (0.0, most) for cell, most in test_points(release).items()}
        note = f"could not be graded: it ended the grading process (exit code {process.exitcode})"
        grade = Grade(student, lab, nothing, [note], f"feedback/{student}/{lab}.html")
        (out / grade.feedback).write_text(_page_of_reasons(grade))
        return grade
    finally:
        process.join()


def _grade_and_send(sender, submissions: Path, student: str, lab: str, template: Path, out: Path):
    _quiet(out)
    sender.send(grade_one(submissions, student, lab, template, out))


def _fresh(out: Path) -> None:
    """An empty `out`; a folder that this command did not write is left alone."""
    if out.exists() and any(out.iterdir()) and not (out / "seed.txt").exists():
        raise SystemExit(f"{out} holds other files: name an empty folder in OUT")
    shutil.rmtree(out / "feedback", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)


def report(grades: list[Grade]) -> None:
    for grade in grades:
        note = f"  {'; '.join(grade.notes)}" if grade.notes else ""
        print(f"{grade.student:20} {grade.lab:28} {grade.points:5g}/{grade.out_of:<5g}{note}")


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("submissions", type=Path)
    parser.add_argument("--out", type=Path, default=os.getenv("OUT") or ROOT / "build/grades")
    parser.add_argument("--solutions", type=Path, default=ROOT / "solutions")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", default=os.getenv("KERNELBOOK_SEED"), help="of the hidden tests")
    options = parser.parse_args(arguments)
    submissions, out = options.submissions.resolve(), options.out.resolve()
    if not find(submissions):
        raise SystemExit(f"no folder student/lab in {options.submissions}")
    if out == submissions or out in submissions.parents or submissions in out.parents:
        raise SystemExit(f"OUT={options.out} overlaps the submissions: choose another folder")
    start = time.monotonic()
    seed = options.seed or secrets.token_hex(8)
    _fresh(out)
    (out / "seed.txt").write_text(seed + "\n")
    _quiet(out)
    grades = grade_all(submissions, out, options.solutions.resolve(), options.jobs, seed)
    write_csv(grades, out / "grades.csv")
    report(grades)
    seconds = time.monotonic() - start
    print(f"{len(grades)} submissions in {seconds:.0f} s: {out / 'grades.csv'}")
    print(f"hidden tests were drawn from seed {seed}; KERNELBOOK_SEED={seed} repeats them")


if __name__ == "__main__":
    main()

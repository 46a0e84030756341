"""`make grade SUBMISSIONS=folder`: grades.csv and HTML feedback for student/lab/lab.ipynb.

nbgrader does the grading. This adds what it lacks: every submission is graded in a process and a
course folder of its own, so that none harms another; what is broken is named with its reason.
Submissions are read, never written. Notebooks are run as they are: there is no sandbox, so grade
in a container or on a machine without anything to lose.

OUT=folder is where results go (build/grades), KERNELBOOK_SEED the seed of the hidden tests (else
drawn and printed), KERNELBOOK_CELL_SECONDS the limit of a cell (10; more for a slow machine).
"""

import argparse
import csv
import logging
import multiprocessing
import os
import secrets
import shutil
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path

import nbformat
from nbgrader.converters import GenerateAssignment
from tqdm import tqdm

from kernelbook.course.labs import ROOT, configuration, convert, copy_lab, names
from kernelbook.course.submission import Grade, grade_one, page_of_reasons, test_points

# Forked, so that torch and nbgrader are imported once. Nothing here may start a thread before.
PROCESSES = multiprocessing.get_context("fork")
tqdm.monitor_interval = 0


def find(submissions: Path) -> list[tuple[str, str]]:
    """(student, lab) of every folder two levels down, in order; lab is "" where there is none."""
    students = [path for path in sorted(submissions.glob("[!.]*")) if path.is_dir()]
    found = []
    for student in students:
        labs = [path.name for path in sorted(student.glob("[!.]*")) if path.is_dir()]
        found += [(student.name, lab) for lab in labs or [""]]
    return found


def prepare(solutions: Path, template: Path) -> None:
    """A course folder with every lab, as handed out and in a gradebook."""
    config = configuration(template)
    for lab in names(solutions):
        copy_lab(solutions / lab, template / "solutions" / lab)
        convert(GenerateAssignment, config, lab)


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
    """nbgrader's log and its database's warnings go to a file; the screen shows bar and result."""
    logging.captureWarnings(True)
    handler = logging.FileHandler(out / "nbgrader.log")
    for log in map(logging.getLogger, ("traitlets", "py.warnings")):
        log.handlers[:] = [handler]
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
    waiting, running, grades = find(submissions), {}, {}
    with tempfile.TemporaryDirectory(prefix="grade-") as template:
        prepare(solutions, Path(template))
        for _ in tqdm(list(waiting), desc="grading", unit="lab"):
            while waiting and len(running) < jobs:
                key = waiting.pop(0)
                receiver, process = _start(submissions, *key, Path(template), out)
                running[receiver] = key, process
            receiver = wait(list(running))[0]
            key, process = running.pop(receiver)
            grades[key] = _received(receiver, process) or _lost(key, process, Path(template), out)
    return [grades[key] for key in find(submissions)]


def _start(*arguments):
    """`grade_one` in a process of its own, forked from this one, and the end of its pipe."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_grade_and_send, args=(sender, *arguments))
    process.start()
    sender.close()
    return receiver, process


def _grade_and_send(sender, *arguments) -> None:
    sender.send(grade_one(*arguments))


def _received(receiver, process) -> Grade | None:
    """What the process sent; None if it died before that."""
    try:
        return receiver.recv()
    except EOFError:
        return None
    finally:
        process.join()


def _lost(key: tuple[str, str], process, template: Path, out: Path) -> Grade:
    """The grade of a submission whose process died."""
    student, lab = key
    release = nbformat.read(template / "labs" / lab / f"{lab}.ipynb", as_version=4)
    nothing = {cell: (0.0, most) for cell, most in test_points(release).items()}
    note = f"could not be graded: it ended the grading process (exit code {process.exitcode})"
    grade = Grade(student, lab, nothing, [note], f"feedback/{student}/{lab}.html")
    (out / grade.feedback).write_text(page_of_reasons(grade))
    return grade


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
    if not any(lab for _, lab in find(submissions)):
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

"""`make labs`: what students get (labs/) from the instructor's version (solutions/)."""

import argparse
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import SaveCells
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

ROOT = Path(__file__).parents[2]


def configuration(course: Path) -> Config:
    """The settings of nbgrader_config.py for the course folder `course`."""
    # nbgrader starts `alembic` by its bare name.
    environment = str(Path(sys.executable).parent)
    if environment not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = environment + os.pathsep + os.environ["PATH"]
    config = PyFileConfigLoader("nbgrader_config.py", str(ROOT)).load_config()
    config.CourseDirectory.root = str(course)
    config.CourseDirectory.db_url = f"sqlite:///{course}/gradebook.db"
    return config


def convert(converter, config: Config, lab: str, **options) -> None:
    """Run one of nbgrader's converters on one lab of the course folder."""
    coursedir = CourseDirectory(config=config)
    coursedir.assignment_id = lab
    if "student_id" in options:
        coursedir.student_id = options.pop("student_id")
    converter(coursedir=coursedir, config=config, force=True, **options).start()


def names(solutions: Path) -> list[str]:
    """The labs of a solutions folder, in order."""
    return sorted(path.parent.name for path in solutions.glob("*/*.ipynb"))


def canonical(path: Path) -> None:
    """Rewrite a notebook so that the same content is the same bytes."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.metadata.pop("widgets", None)
    path.write_text(nbformat.writes(notebook, indent=1, sort_keys=True).rstrip("\n") + "\n")


def generate(solutions: Path, labs: Path) -> list[str]:
    """Write every lab of `solutions` into `labs`, without solutions and hidden tests."""
    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder)
        config = configuration(course)
        config.GenerateAssignment.preprocessors = [
            step for step in GenerateAssignment.preprocessors.default() if step is not SaveCells
        ]
        for lab in names(solutions):
            copy_lab(solutions / lab, course / "solutions" / lab)
            convert(GenerateAssignment, config, lab, no_database=True)
            canonical(course / "labs" / lab / f"{lab}.ipynb")
            shutil.rmtree(labs / lab, ignore_errors=True)
            copy_lab(course / "labs" / lab, labs / lab)
    return names(solutions)


def copy_lab(source: Path, target: Path) -> None:
    ignored = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
    shutil.copytree(source, target, ignore=ignored)


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--solutions", type=Path, default=ROOT / "solutions")
    parser.add_argument("--labs", type=Path, default=ROOT / "labs")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for lab in generate(options.solutions, options.labs):
        print(f"{options.labs.name}/{lab}")


if __name__ == "__main__":
    main()

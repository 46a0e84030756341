"""The chapters as files: find, read, execute. Needs nbclient, and no JupyterLab."""

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
IGNORED = "nbval-ignore-output"
CELL_SECONDS = 900


def find(names=(), folder: Path = NOTEBOOKS) -> list[Path]:
    """Chapters that begin with one of `names` ("03"), or all. ValueError for an unknown name."""
    every = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    for name in names:
        if not any(path.name.startswith(name) for path in every):
            known = ", ".join(path.stem for path in every) or "none"
            raise ValueError(f"no chapter begins with {name!r}; there are: {known}")
    return [path for path in every if not names or path.name.startswith(tuple(names))]


def read(path: Path) -> dict:
    """A notebook as plain JSON, each cell's source as one string."""
    notebook = json.loads(Path(path).read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def is_ignored(cell: dict) -> bool:
    """Whether the cell measures or plots, so that its output is not compared."""
    return IGNORED in cell["metadata"].get("tags", [])


def environment(**changes) -> dict:
    """The environment of a kernel that imports this repository's kernelbook."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | changes


def execute(path: Path, on_cell=lambda: None) -> dict:
    """The notebook, run from top to bottom in its own folder by a fresh kernel of this Python.

    Raises nbclient's CellExecutionError for the first cell that fails.
    """
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        config=Config(KernelManager={"transport_encryption": "auto"}),  # or the kernel warns
        timeout=CELL_SECONDS,
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_executed=lambda **_: on_cell(),
    )
    client.execute(env=environment())
    return json.loads(nbformat.writes(notebook))


def nbval(paths: list[Path], *options: str) -> list[str]:
    """The command that runs chapters again and compares their outputs, without any GPU's."""
    line = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", *options]
    line += [f"--nbval-cell-timeout={CELL_SECONDS}", "-p", "no:cacheprovider"]
    return [*line, *map(str, paths)]


def error_line(error: Exception) -> str:
    """A failed cell in one line: what was raised, without the traceback."""
    name, value = getattr(error, "ename", ""), getattr(error, "evalue", "")
    return f"{name}: {value}" if name else f"{type(error).__name__}: {error}"

"""A tiny notebook in the form of a chapter, for the tests of the checks to spoil in one place."""

import copy
import json
from pathlib import Path

from kernelbook.course.chapters import IGNORED
from kernelbook.course.form import HEADINGS

FIGURE = {
    "output_type": "display_data",
    "data": {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure size 640x480 with 1 Axes>"},
    "metadata": {},
}


def markdown(source: str) -> dict:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def code(source: str, *outputs: dict, tags=()) -> dict:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {"tags": list(tags)} if tags else {},
        "source": source,
        "outputs": list(outputs),
    }


def printed(text: str, name: str = "stdout") -> dict:
    return {"output_type": "stream", "name": name, "text": text}


def chapter() -> dict:
    """A good chapter 99: two compared cells in each of Predict, Verify, Meter; one figure."""
    cells = [markdown("# 99 A chapter\n\nTwo is even.")]
    for heading in HEADINGS:
        cells.append(markdown(f"## {heading}\n\nIn words, 10 minutes."))
        if heading in ("Predict", "Verify", "Meter"):
            cells.append(code(f"print('{heading}', 6 * 7)", printed(f"{heading} 42\n")))
            cells.append(
                code(f"print('same {heading}:', True)", printed(f"same {heading}: True\n"))
            )
        if heading == "Measure":
            cells.append(code("plt.show()", FIGURE, tags=[IGNORED]))
            cells.append(markdown("The figure shows 42 points on a line, all of them measured."))
    ran = [cell for cell in cells if cell["cell_type"] == "code"]
    for count, cell in enumerate(ran, 1):
        cell["execution_count"] = count
    return {"cells": copy.deepcopy(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def save(path: Path, notebook: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook))
    return path

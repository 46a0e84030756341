"""What every chapter must be: run, in order, in the chapter's form, with outputs worth comparing.

`problems(notebook, name)` lists what is wrong, each as one line that names the cell.
"""

import json
import re
import sys

from kernelbook.course import chapters

HEADINGS = (
    "Question",
    "Predict",
    "Build",
    "Verify",
    "Meter",
    "Measure",
    "Amdahl",
    "Where it loses",
    "Verdict",
)
SHORT = ("Question", "Predict", "Meter", "Measure", "Verdict")  # chapter 00
COMPARED_SECTIONS = ("Predict", "Verify", "Meter")
COMPARED_AT_LEAST = 6
BYTES_AT_MOST = 1_500_000
TAGS = {chapters.IGNORED}

UNSTABLE = re.compile(r"cuda|device=|dtype=|tensor\(|0x[0-9a-f]{6}|e-0\d")
ABSOLUTE = re.compile(
    r"(?<![\w.:~/-])/(home|root|work|tmp|Users|mnt|workspace|content|usr|opt|var)/"
)
# A number that can be wrong (not the digit of a name like C03 or sm_80), or a verdict.
NUMBER = re.compile(r"(?<![\w.])\d+(?![\w])|(?<![\w])\d+\.\d+|\b\d+(?=[x%])")
VERDICT = re.compile(r"\b(ok|true|false|depends|yes|no|same)\b", re.IGNORECASE)


def sections(notebook: dict) -> list[tuple[str, dict]]:
    """Each cell with the second-level heading it stands under ("" before the first)."""
    current, found = "", []
    for cell in notebook["cells"]:
        for heading in headings(cell):
            current = heading
        found.append((current, cell))
    return found


def headings(cell: dict) -> list[str]:
    """The second-level headings of a Markdown cell, fenced code aside."""
    if cell["cell_type"] != "markdown":
        return []
    outside = re.sub(r"^```.*?^```", "", cell["source"], flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^## +(.+?) *$", outside, flags=re.MULTILINE)


def text_of(cell: dict) -> str:
    """Everything a code cell shows as text."""
    texts = []
    for output in cell["outputs"]:
        texts.append("".join(output.get("text", "")))
        for kind, value in output.get("data", {}).items():
            if kind not in ("image/png", "image/jpeg"):
                texts.append(json.dumps(value) if isinstance(value, dict) else "".join(value))
    return "\n".join(texts)


def is_compared(cell: dict) -> bool:
    """Whether nbval compares something of this cell."""
    return cell["cell_type"] == "code" and bool(cell["outputs"]) and not chapters.is_ignored(cell)


def has_result(cell: dict) -> bool:
    """Whether the output has a number or a verdict, so that a wrong one would be noticed."""
    return bool(NUMBER.search(text_of(cell)) or VERDICT.search(text_of(cell)))


def where(notebook: dict, cell: dict) -> str:
    """A cell's name for people: its number, its section, its first line."""
    number = next(i for i, other in enumerate(notebook["cells"], 1) if other is cell)
    section = sections(notebook)[number - 1][0] or "the beginning"
    first = (cell["source"].splitlines() or ["(empty)"])[0]
    return f"cell {number} in {section} ({first[:50]})"


def run_problems(notebook: dict) -> list[str]:
    """Cells that have not run, ran out of order, or failed."""
    found = []
    for count, cell in enumerate(chapters.code_cells(notebook), 1):
        place = where(notebook, cell)
        if not cell["source"].strip():
            found.append(f"{place}: an empty code cell")
        if cell.get("execution_count") is None:
            found.append(f"{place}: has not run")
        elif cell["execution_count"] != count:
            found.append(f"{place}: ran as number {cell['execution_count']}, stands as {count}")
        for output in cell["outputs"]:
            if output["output_type"] == "error":
                found.append(f"{place}: an error output, {output['ename']}")
    return found


def cell_problems(notebook: dict) -> list[str]:
    """Unknown tags, absolute paths, and figures that no sentence describes."""
    found = []
    following = [*notebook["cells"][1:], None]
    for cell, after in zip(notebook["cells"], following, strict=True):
        place = where(notebook, cell)
        unknown = set(cell["metadata"].get("tags", [])) - TAGS
        if unknown:
            found.append(f"{place}: unknown tags {sorted(unknown)}")
        shown = cell["source"] + (text_of(cell) if cell["cell_type"] == "code" else "")
        if path := ABSOLUTE.search(shown):
            found.append(f"{place}: an absolute path, {shown[path.start() :][:40]!r}")
        if has_figure(cell) and not describes(after):
            found.append(f"{place}: no sentence with its key numbers follows the figure")
    return found


def has_figure(cell: dict) -> bool:
    outputs = cell.get("outputs", [])
    return any(kind.startswith("image/") for out in outputs for kind in out.get("data", {}))


def describes(cell: dict | None) -> bool:
    """Whether the cell is a sentence with a number: what a figure shows, in words."""
    if cell is None or cell["cell_type"] != "markdown":
        return False
    text = cell["source"].strip()
    return not text.startswith("#") and len(text) >= 40 and bool(re.search(r"\d", text))


def compared_problems(notebook: dict, short: bool) -> list[str]:
    """Compared cells: too few, in the wrong sections, or with outputs that vary by machine."""
    compared = [(section, cell) for section, cell in sections(notebook) if is_compared(cell)]
    found = []
    telling = [(section, cell) for section, cell in compared if has_result(cell)]
    if len(telling) < COMPARED_AT_LEAST:
        found.append(f"{len(telling)} compared cells with a result, {COMPARED_AT_LEAST} needed")
    for needed in SHORT if short else HEADINGS:
        if needed in COMPARED_SECTIONS and not any(section == needed for section, _ in telling):
            found.append(f"no compared cell with a result in {needed}")
    for _, cell in compared:
        place = where(notebook, cell)
        if not has_result(cell):
            found.append(f"{place}: compared, but neither a number nor a verdict in its output")
        if unstable := UNSTABLE.search(text_of(cell)):
            found.append(f"{place}: compared output has {unstable.group()!r}")
        if any(output.get("name") == "stderr" for output in cell["outputs"]):
            found.append(f"{place}: compared output has text on stderr")
        if has_figure(cell):
            found.append(f"{place}: draws a figure without the tag {chapters.IGNORED}")
    return found


def heading_problems(notebook: dict, short: bool) -> list[str]:
    """Title and sections, in the order that all chapters share."""
    wanted = list(SHORT if short else HEADINGS)
    has = [heading for cell in notebook["cells"] for heading in headings(cell)]
    found = [] if has == wanted else [f"headings are {has}, a chapter has {wanted}"]
    first = notebook["cells"][0] if notebook["cells"] else {"cell_type": "", "source": ""}
    if first["cell_type"] != "markdown" or not re.match(r"# \S", first["source"]):
        found.append("the first cell is not a title")
    return found


def problems(notebook: dict, name: str) -> list[str]:
    """Everything wrong with a chapter; `name` decides whether it is 00, the short one."""
    short = name.startswith("00")
    return (
        heading_problems(notebook, short)
        + run_problems(notebook)
        + cell_problems(notebook)
        + compared_problems(notebook, short)
    )


def main(arguments=None) -> int:
    """Prints what is wrong with the chapters named, or with all."""
    found = 0
    for path in chapters.find(sys.argv[1:] if arguments is None else arguments):
        for problem in problems(chapters.read(path), path.name):
            print(f"{path.name}: {problem}")
            found += 1
        if path.stat().st_size > BYTES_AT_MOST:
            print(f"{path.name}: {path.stat().st_size:,} bytes, {BYTES_AT_MOST:,} at most")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

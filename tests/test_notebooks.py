"""The chapters' files are what the course promises, and the checks of that notice what is not."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import synthetic

from kernelbook.course import chapters, form, format, links

CHAPTERS = chapters.find()
MUST_EXIST = (
    "00_start_here",
    "02_naive_attention",
    "03_tiled_attention",
    "04_split_kv_decode",
    "05_kv_layouts",
)

# --- the chapters --------------------------------------------------------------------------


@pytest.mark.parametrize("name", MUST_EXIST)
def test_chapter_exists(name):
    assert name in [path.stem for path in CHAPTERS]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_has_the_form_of_a_chapter(path):
    assert form.problems(chapters.read(path), path.name) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_is_stored_in_canonical_form(path):
    assert format.is_canonical(path), "`make format` rewrites it"
    assert path.stat().st_size < form.BYTES_AT_MOST


def test_links_lead_somewhere():
    assert links.problems() == []


# --- a changed digit turns nbval red -------------------------------------------------------


def flip(word: str) -> str:
    """The opposite of a verdict, or at least another word."""
    opposite = {"true": "false", "false": "true", "yes": "no", "no": "yes", "ok": "no"}
    return opposite.get(word.lower(), "another")


def change(text: str, last: bool) -> str:
    """The text with its first digit changed, or its last verdict flipped, or what there is."""
    digits = list(re.finditer(r"\d", text))
    verdicts = list(form.VERDICT.finditer(text))
    spots = (verdicts or digits) if last else (digits or verdicts)
    if not spots:
        return text
    spot = spots[-1 if last else 0]
    old = spot.group()
    new = str((int(old) + 1) % 10) if old.isdigit() else flip(old)
    return text[: spot.start()] + new + text[spot.end() :]


def spoil(notebook: dict, last: bool) -> set[int]:
    """Changes one place in each compared output; the numbers of the cells, as nbval counts."""
    spoilt = set()
    for number, cell in enumerate(chapters.code_cells(notebook)):
        if not (form.is_compared(cell) and form.has_result(cell)):
            continue
        spoilt.add(number)
        for output in cell["outputs"]:
            if "text" in output:
                output["text"] = change("".join(output["text"]), last)
            for kind in output.get("data", {}):
                output["data"][kind] = change("".join(output["data"][kind]), last)
    return spoilt


def lay_out(folder: Path, notebooks: dict[str, dict]) -> dict[str, set[int]]:
    """Three copies of each chapter, untouched and spoilt; which cells of which must be red."""
    expected = {}
    for name, notebook in notebooks.items():
        answers = [(cell["source"], cell["outputs"]) for cell in chapters.code_cells(notebook)]
        for variant in ("same", "first", "last"):
            copy = json.loads(json.dumps(notebook))
            home = folder / f"{variant}_{name}"
            red = set() if variant == "same" else spoil(copy, variant == "last")
            synthetic.save(home / f"{variant}_{name}.ipynb", copy)
            (home / "answers.json").write_text(json.dumps(answers))
            expected[home.name] = red
    return expected


def red_cells(folder: Path) -> dict[str, set[int]]:
    """One run of nbval over all notebooks in `folder`, replayed: which cells failed in which."""
    kernel = folder / "share" / "kernels" / "replay"
    kernel.mkdir(parents=True)
    start = [sys.executable, str(Path(__file__).with_name("replay_kernel.py"))]
    spec = {"argv": [*start, "-f", "{connection_file}"], "display_name": "", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-kernel-name=replay", str(folder)]
    command += ["-p", "no:cacheprovider", f"--junitxml={folder}/report.xml", f"--rootdir={folder}"]
    run = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"JUPYTER_PATH": str(folder / "share")},
        capture_output=True,
        text=True,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    red = {path.parent.name: set() for path in folder.glob("*/*.ipynb")}
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        home = re.search(r"(?:same|first|last)_\w+", case.get("classname")).group()
        if case.find("failure") is not None or case.find("error") is not None:
            red[home].add(int(case.get("name").split()[-1]))
    return red


def test_a_changed_digit_or_verdict_turns_nbval_red(tmp_path):
    notebooks = {path.stem: chapters.read(path) for path in CHAPTERS}
    notebooks["99_synthetic"] = synthetic.chapter()
    expected = lay_out(tmp_path, notebooks)
    assert len(expected["first_99_synthetic"]) == 6
    assert red_cells(tmp_path) == expected


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        (
            "read 4,096 bytes in 3 passes",
            "read 5,096 bytes in 3 passes",
            "read 4,096 bytes in 4 passes",
        ),
        ("same text: True", "another text: True", "same text: false"),
        ("ok (tolerance 2e-3)", "ok (tolerance 3e-3)", "no (tolerance 2e-3)"),
        ("nothing here", "nothing here", "nothing here"),
    ],
)
def test_changes_are_the_smallest_that_matter(text, first, last):
    assert change(text, last=False) == first
    assert change(text, last=True) == last


# --- the checks notice what is wrong -------------------------------------------------------


def spoilt_chapter(spoil_it) -> list[str]:
    """What the checks say about the good chapter after `spoil_it(cells)`."""
    notebook = synthetic.chapter()
    spoil_it(notebook["cells"])
    return form.problems(notebook, "99_synthetic.ipynb")


def find(cells: list[dict], text: str) -> dict:
    """The one cell whose source contains the text."""
    (cell,) = (cell for cell in cells if text in cell["source"])
    return cell


def test_a_good_chapter_has_no_problems():
    assert spoilt_chapter(lambda cells: None) == []


def strip(cells):
    for cell in cells:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)


def swap(cells):
    first, second = find(cells, "'Predict', 6"), find(cells, "'Verify', 6")
    first["execution_count"], second["execution_count"] = 3, 1


def raise_error(cells):
    error = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}
    find(cells, "'Meter', 6")["outputs"].append(error)


def print_in(text, name="stdout", where="'Meter', 6"):
    return lambda cells: find(cells, where)["outputs"].append(synthetic.printed(text, name))


def tag(name, where="'Meter', 6"):
    return lambda cells: find(cells, where)["metadata"].update(tags=[name])


def remove(text):
    return lambda cells: cells.remove(find(cells, text))


def replace(old, new):
    def edit(cells):
        cell = find(cells, old)
        cell["source"] = cell["source"].replace(old, new)

    return edit


def empty_output(cells):
    find(cells, "'Meter', 6")["outputs"] = [synthetic.printed("done\n")]


def draw_untagged(cells):
    find(cells, "plt.show")["metadata"] = {}


def tag_all_of_meter(cells):
    tag(chapters.IGNORED)(cells)
    tag(chapters.IGNORED, "same Meter")(cells)


@pytest.mark.parametrize(
    ("spoil_it", "message"),
    [
        (strip, "has not run"),
        (strip, "0 compared cells with a result, 6 needed"),
        (swap, "ran as number 3, stands as 1"),
        (raise_error, "an error output, ValueError"),
        (print_in("/home/me/course/a.py\n"), "an absolute path, '/home/me/course/a.py"),
        (replace("print('Meter'", "open('/tmp/x'); print('Meter'"), "an absolute path, \"/tmp/x'"),
        (print_in("on cuda:0\n"), "compared output has 'cuda'"),
        (print_in("tensor([1])\n"), "compared output has 'tensor('"),
        (print_in("at 0x7f00aa\n"), "compared output has '0x7f00aa'"),
        (print_in("error 1.2e-07\n"), "compared output has 'e-07'"),
        (print_in("a warning\n", "stderr"), "text on stderr"),
        (empty_output, "neither a number nor a verdict"),
        (tag("slow"), "unknown tags ['slow']"),
        (tag_all_of_meter, "no compared cell with a result in Meter"),
        (tag_all_of_meter, "4 compared cells with a result, 6 needed"),
        (remove("The figure shows"), "no sentence with its key numbers follows the figure"),
        (replace("42 points on a line", "points"), "no sentence with its key numbers"),
        (draw_untagged, "draws a figure without the tag"),
        (remove("## Amdahl"), "headings are"),
        (replace("## Build", "## Building"), "headings are"),
        (replace("# 99 A chapter", "A chapter"), "the first cell is not a title"),
        (replace("print('Meter', 6 * 7)", " "), "an empty code cell"),
    ],
)
def test_a_spoilt_chapter_is_noticed(spoil_it, message):
    problems = spoilt_chapter(spoil_it)
    assert any(message in problem for problem in problems), problems


def test_chapter_00_has_five_sections():
    notebook = synthetic.chapter()
    assert "headings are" in form.problems(notebook, "00_start_here.ipynb")[0]
    long = [f"## {heading}" for heading in form.HEADINGS if heading not in form.SHORT]
    cells = [cell for cell in notebook["cells"] if not cell["source"].startswith(tuple(long))]
    problems = form.problems(notebook | {"cells": cells}, "00_start_here.ipynb")
    assert problems == []


def test_a_heading_in_fenced_code_is_none():
    cell = synthetic.markdown("## Build\n\n```\n## not one\n```\n\n### nor this\n")
    assert form.headings(cell) == ["Build"]


# --- canonical form ------------------------------------------------------------------------


def messy() -> dict:
    """The good chapter as an editor might leave it."""
    notebook = synthetic.chapter()
    notebook["metadata"] = {"widgets": {}, "language_info": {"name": "python", "version": "3.1"}}
    for cell in notebook["cells"]:
        cell["metadata"] |= {"execution": {"iopub.busy": "now"}, "scrolled": True}
        cell["id"] = os.urandom(4).hex()
    first = chapters.code_cells(notebook)[0]
    first["outputs"] = [synthetic.printed("Predict"), synthetic.printed(" 42\n")]
    first["source"] += "\n\n"
    return notebook


def test_canonical_form_forgets_the_session():
    assert format.canonical(messy()) == format.canonical(synthetic.chapter())


def test_canonical_form_is_stable_and_valid(tmp_path):
    import nbformat

    path = tmp_path / "99_a.ipynb"
    format.write(path, messy())
    assert format.is_canonical(path)
    nbformat.validate(nbformat.read(path, as_version=4))
    assert nbformat.writes(nbformat.read(path, as_version=4)) + "\n" == path.read_text()


def test_a_widget_leaves_a_note_and_no_state():
    data = {format.WIDGET: {"model_id": "1"}, "text/plain": "IntSlider(value=1)"}
    kept = format.canonical_output({"output_type": "display_data", "data": data, "metadata": {}})
    assert kept["data"] == {"text/plain": [format.INSTEAD_OF_WIDGET]}


# --- links ---------------------------------------------------------------------------------


def test_links_are_followed(tmp_path):
    (tmp_path / "a b.md").write_text("# One thing: `twice`\n")
    text = "[x](a%20b.md#one-thing-twice) [w](https://example.org/a) `[no](code)`\n"
    text += "```\n[no](fence)\n```\n[self](#here)\n\n## Here\n"
    (tmp_path / "README.md").write_text(text)
    assert links.problems(tmp_path) == []


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("missing.md", "no such file"),
        ("#missing", "no such heading"),
        ("/etc/hosts", "neither relative nor on the web"),
        ("http://localhost:8888/lab", "no address that others can open"),
    ],
)
def test_links_that_lead_nowhere_are_named(tmp_path, link, reason):
    (tmp_path / "README.md").write_text(f"# Title\n\n[text]({link})\n")
    (problem,) = links.problems(tmp_path)
    assert problem.startswith(f"README.md: [{link}]") and reason in problem

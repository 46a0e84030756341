"""Executed chapters as HTML pages in build/site/. `python -m kernelbook.course.pages`

A page is one file, figures and styles included, and loads nothing from elsewhere, except
MathJax where it has formulas.
"""

import html
import re
import shutil
import sys
from pathlib import Path

from kernelbook import ledger
from kernelbook.course import chapters, form

SITE = chapters.ROOT / "build" / "site"
# JupyterLab's own template, less the scripts that only widgets and diagrams need.
TEMPLATE = """{% extends 'lab/index.html.j2' %}
{% block html_head_js %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}
"""
WITHOUT_FORMULAS = "{% block html_head_js_mathjax %}{% endblock %}"
MISSING = "No description has been provided for this image"
INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Move less, launch less, wait less</title>
<meta name="viewport" content="width=device-width, initial-scale=1.0">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }}
table {{ border-collapse: collapse }}
td, th {{ border-bottom: 1px solid #ccc; padding: .5rem; text-align: left; vertical-align: top }}
</style></head><body>
<h1>Move less, launch less, wait less</h1>
<p>GPU kernels and runtime for LLM inference, in notebooks.</p>
<table><tr><th>Chapter</th><th>The claim</th><th>Verdicts</th></tr>
{rows}
</table></body></html>
"""


def title_and_claim(notebook: dict) -> tuple[str, str]:
    """The chapter's title, and the sentence under it."""
    first, _, rest = notebook["cells"][0]["source"].partition("\n")
    claim = re.split(r"\n\s*\n|\n#", rest.strip())[0]
    return first.lstrip("# "), re.sub(r"[*_`]", "", claim)


def has_formulas(notebook: dict) -> bool:
    """Whether any Markdown cell has $...$ or $$...$$ outside of code."""
    texts = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    prose = re.sub(r"```.*?```|`[^`]*`", "", "\n".join(texts), flags=re.DOTALL)
    return bool(re.search(r"\$[^$]+\$", prose))


def descriptions(notebook: dict) -> list[str]:
    """For each figure, in order, the sentence that follows it: its text for the blind."""
    found = []
    following = [*notebook["cells"][1:], None]
    for cell, after in zip(notebook["cells"], following, strict=True):
        text = after["source"] if form.describes(after) else "a figure"
        for output in cell.get("outputs", []):
            found += [
                text for kind in output.get("data", {}) if kind in ("image/png", "image/jpeg")
            ]
    return found


def links_from_site(page: str) -> str:
    """Links between chapters lead to their pages, links to other files into the repository."""
    page = re.sub(r'href="(?:\./)?(\d\d_\w+)\.ipynb', r'href="\1.html', page)
    return page.replace('href="../', 'href="../../')


def page(path: Path) -> str:
    """One chapter's HTML."""
    import nbformat
    from nbconvert import HTMLExporter

    notebook = chapters.read(path)
    template = TEMPLATE if has_formulas(notebook) else TEMPLATE + WITHOUT_FORMULAS
    # embed_images would close each <details> before its answer; figures are data in any case
    exporter = HTMLExporter(raw_template=template)
    resources = {"metadata": {"name": title_and_claim(notebook)[0], "path": str(path.parent)}}
    text, _ = exporter.from_notebook_node(nbformat.read(path, as_version=4), resources)
    for description in descriptions(notebook):
        text = text.replace(MISSING, html.escape(" ".join(description.split())), 1)
    return links_from_site(text)


def row(path: Path) -> str:
    """One chapter's line in the table of the index."""
    title, claim = map(html.escape, title_and_claim(chapters.read(path)))
    verdicts = "<br>".join(html.escape(f"{v.claim} {v.outcome}") for v in ledger.collect(path))
    link = f'<a href="{path.stem}.html">{title}</a>'
    return f"<tr><td>{link}</td><td>{claim}</td><td>{verdicts}</td></tr>"


def build(paths: list[Path], site: Path = SITE) -> Path:
    """Writes a page for each notebook and the index; the folder they are in."""
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    for path in paths:
        (site / f"{path.stem}.html").write_text(page(path), encoding="utf-8")
    index = INDEX.format(rows="\n".join(map(row, paths)))
    (site / "index.html").write_text(index, encoding="utf-8")
    return site


if __name__ == "__main__":
    site = build(chapters.find(sys.argv[1:]))
    print(f"pages: {site.relative_to(chapters.ROOT)}/index.html")

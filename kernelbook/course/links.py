"""Links in the README, the other documents and all notebooks lead somewhere.

`python -m kernelbook.course.links`: relative links to files and headings are followed; addresses
on the web are only checked for their form, so that this needs no network.
"""

import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

from kernelbook.course import chapters

DOCUMENTS = ("*.md", "data/**/*.md", "docs/**/*.md", "notebooks/*.ipynb", "solutions/*/*.ipynb")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)|<img[^>]+src=[\"']([^\"']+)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def prose(path: Path) -> str:
    """The Markdown of a document or notebook, without code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = chapters.read(path)["cells"]
        text = "\n\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```|``.+?``|`[^`\n]*`", code_to_text, text, flags=re.M | re.S)


def code_to_text(code: re.Match) -> str:
    """Inline code keeps its words (a heading may have some) and loses what looks like a link."""
    return "" if code.group().startswith("```") else re.sub(r"[`\[\]()]", "", code.group())


def links(path: Path) -> list[str]:
    return [match[1] or match[2] for match in LINK.finditer(prose(path))]


def anchors(path: Path) -> set[str]:
    """What a #fragment may name: GitHub's form of each heading, and JupyterLab's."""
    found = set()
    for heading in HEADING.findall(prose(path)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[*_]", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
        found.add(plain.replace(" ", "-"))
    return found


def problem(path: Path, link: str) -> str | None:
    """Why a link leads nowhere, or None."""
    parts = urlparse(link)
    if parts.scheme in ("http", "https"):
        well_formed = "." in parts.netloc and parts.hostname not in ("localhost", "127.0.0.1")
        return None if well_formed else "no address that others can open"
    if parts.scheme == "mailto":
        return None
    if parts.scheme or link.startswith("/"):
        return "neither relative nor on the web"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.exists():
        return "no such file"
    if parts.fragment and target.suffix in (".md", ".ipynb"):
        known = unquote(parts.fragment) in anchors(target)
        return None if known else "no such heading there"
    return None


def documents(root: Path = chapters.ROOT) -> list[Path]:
    return sorted({path for pattern in DOCUMENTS for path in root.glob(pattern)})


def problems(root: Path = chapters.ROOT) -> list[str]:
    """One line for each link that leads nowhere."""
    return [
        f"{path.relative_to(root)}: [{link}] {reason}"
        for path in documents(root)
        for link in links(path)
        if (reason := problem(path, link))
    ]


if __name__ == "__main__":
    found = problems()
    print("\n".join(found) or f"links: all well in {len(documents())} documents")
    sys.exit(1 if found else 0)

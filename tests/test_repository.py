"""What holds for the files of the repository as a whole."""

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

from kernelbook.course import chapters

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DATA = ROOT / "data" / "README.md"
# Written in two pieces, so that this file does not contain what it looks for.
MACHINE_PATHS = re.compile("|".join(("/work" + "/(main|shared)", "/root" + "/", "/opt" + "/pypi")))
HOSTS = re.compile("|".join(("pypi" + r"\.org", "pythonhosted" + r"\.org", "deb" + r"\.debian")))
UNFINISHED = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")))


def tracked(*patterns: str) -> list[Path]:
    """Files under git's control, or that will be: neither ignored nor generated."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def lines_with(pattern: re.Pattern, paths: list[Path]) -> list[str]:
    """Each place where the pattern stands."""
    return [
        f"{path.relative_to(ROOT)}: {line.strip()[:80]}"
        for path in paths
        if pattern.search(text(path))
        for line in text(path).splitlines()
        if pattern.search(line)
    ]


def test_no_file_names_a_machine_s_paths():
    assert lines_with(MACHINE_PATHS, tracked()) == []


def test_no_file_names_a_package_index():
    assert lines_with(HOSTS, tracked()) == []


def test_nothing_is_left_unfinished():
    assert lines_with(UNFINISHED, tracked("kernelbook", "benchmarks", "tests")) == []


def test_requirements_are_pinned():
    lines = text(ROOT / "requirements.txt").splitlines()
    requirements = [line for line in lines if line and not line.startswith("#")]
    assert len(requirements) > 5
    for requirement in requirements:
        assert re.match(r"[\w.-]+==\d[\w.]*(;|$)", requirement), requirement
    extra = re.search(r"test = \[(.*?)\]", text(ROOT / "pyproject.toml"), re.DOTALL).group(1)
    assert all("==" in line for line in extra.split("\n") if line.strip())


@pytest.mark.parametrize("path", chapters.find(), ids=lambda path: path.stem)
def test_readme_has_a_row_for_each_chapter(path):
    assert re.search(rf"^\|.*{path.name}", text(README), re.MULTILINE)


def test_readme_names_the_two_commands():
    assert {"make lab", "make test"} <= set(re.findall(r"make \w+", text(README)))


def data_files() -> list[Path]:
    """Data, as opposed to the scripts that made it and the pages that describe it."""
    return [path for path in tracked("data") if path.suffix not in (".md", ".py")]


def rows() -> dict[str, str]:
    """Each file named in the table of data/README.md, with its sha256."""
    row = re.compile(r"^\| *(?:\[)?`?([^`|\]]+?)`?(?:\]\([^)]*\))? *\|.*?\b([0-9a-f]{64})\b", re.M)
    return dict(row.findall(text(DATA)))


def test_each_data_file_is_listed_with_its_checksum():
    listed = rows()
    for path in data_files():
        name = path.relative_to(ROOT / "data").as_posix()
        # Records grow with each run; their lines say themselves where they come from.
        if not name.startswith(("records/", "traces/")):  # what benchmarks write
            assert listed.get(name) == hashlib.sha256(path.read_bytes()).hexdigest(), name


def test_data_listed_exists():
    missing = [name for name in rows() if not (ROOT / "data" / name).exists()]
    assert missing == []


def test_license_files_exist():
    for name in ("LICENSE", "LICENSE-TEXT", "CITATION.cff", "CONTRIBUTING.md"):
        assert (ROOT / name).is_file()


def test_ci_only_calls_make_test():
    script = text(ROOT / ".ci" / "run")
    assert script.rstrip().endswith("exec make test")

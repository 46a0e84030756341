"""`make test`: every check of the course, one stage after the other, all of them, with times.

Standard library only and run as a file, so that it can report even a package that does not import.
"""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PARALLEL = ["-n", "2", "--dist", "loadscope"]
MODULE = [sys.executable, "-m"]
PYTEST = [*MODULE, "pytest", "-p", "no:cacheprovider"]
CHAPTERS = "tests/test_chapter_*.py"  # faults in their kernels, which nbval must notice
LABS = "tests/test_lab*.py tests/test_grad*.py tests/test_wrong*.py"
BROWSER = ROOT / "tests" / "test_browser.py"
BUDGET = {"set-up": 90, "unit": 240, "nbval": 180, "labs": 180, "browser": 120}


@dataclass
class Stage:
    """Commands that check one thing; `lacks` says why it cannot run on this machine."""

    name: str
    commands: list[list[str]]
    lacks: str | None = None
    seconds: float = 0.0
    result: str = ""

    def run(self) -> None:
        """Runs all commands, and fails if one of them does."""
        start = time.monotonic()
        if self.lacks:
            self.result = f"skipped: {self.lacks}"
        else:
            print(f"\n=== {self.name}", flush=True)
            codes = [run(command) for command in self.commands]
            self.result = "failed" if any(codes) else "ok"
        self.seconds = time.monotonic() - start


def environment() -> dict:
    """This environment's programs first; one thread a process, as tests run two at a time."""
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return os.environ | threads | {"PATH": path}


def run(command: list[str]) -> int:
    """The exit code; a folder without tests or chapters yet (pytest's 5) is no failure."""
    code = subprocess.run(command, cwd=ROOT, env=environment()).returncode
    return 0 if code == 5 and "pytest" in command else code


def files(patterns: str) -> list[str]:
    """Files that match, relative to the root, in order."""
    found = [path for pattern in patterns.split() for path in ROOT.glob(pattern)]
    return [str(path.relative_to(ROOT)) for path in sorted(found)]


def chromium() -> str | None:
    """A Chromium or Chrome on this machine."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def stages() -> list[Stage]:
    """What `make test` checks, in order."""
    labs, chapters = files(LABS), files(CHAPTERS)
    units = [name for name in files("tests/test_*.py") if name not in labs + chapters]
    units.remove(str(BROWSER.relative_to(ROOT)))
    nbval = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=300"]
    no_browser = None if chromium() else "no Chromium or Chrome found"
    return [
        Stage(
            "format and links",
            [
                [*MODULE, "ruff", "check", "."],
                [*MODULE, "ruff", "format", "--check", "."],
                [*MODULE, "kernelbook.course.format", "--check"],
                [*MODULE, "kernelbook.course.links"],
                [*MODULE, "kernelbook.course.readme", "--check"],
            ],
        ),
        Stage("unit", [[*PYTEST, *PARALLEL, *units]]),
        Stage(
            "nbval", [[*PYTEST, *PARALLEL, *nbval, "notebooks"], [*PYTEST, *PARALLEL, *chapters]]
        ),
        Stage("labs", [[*PYTEST, *PARALLEL, *labs]] if labs else [], None if labs else "no labs"),
        Stage("pages", [[*MODULE, "kernelbook.course.pages"]]),
        Stage("browser", [[*PYTEST, str(BROWSER)]], no_browser),
    ]


def set_up() -> Stage:
    """What the set-up before this took, if it installed something."""
    seconds = ROOT / "build" / "setup.seconds"
    stage = Stage("set-up", [], result="ok")
    if seconds.exists():
        stage.seconds = float(seconds.read_text())
        seconds.unlink()
    return stage


def summary(done: list[Stage]) -> str:
    """A line for each stage: seconds, budget, result."""
    lines = [f"{'stage':18} {'seconds':>7} {'budget':>7}  result"]
    for stage in done:
        budget = BUDGET.get(stage.name, "")
        lines.append(f"{stage.name:18} {stage.seconds:7.0f} {budget:>7}  {stage.result}")
    lines.append(f"{'all':18} {sum(stage.seconds for stage in done):7.0f}")
    return "\n".join(lines)


def main() -> int:
    done = [set_up()]
    for stage in stages():
        stage.run()
        done.append(stage)
    failed = [stage.name for stage in done if stage.result == "failed"]
    skipped = sum(stage.result.startswith("skipped") for stage in done)
    print("\n" + summary(done))
    if failed:
        print(f"failed: {', '.join(failed)}")
    passed = len(done) - len(failed) - skipped
    print(f"stages: {passed} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

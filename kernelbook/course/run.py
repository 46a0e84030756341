"""`make run`: every chapter from top to bottom into build/, the ledger, HTML pages.

`python -m kernelbook.course.run [chapter ...]`
"""

import sys
from pathlib import Path

from kernelbook import ledger
from kernelbook.course import chapters, format, pages

OUT = chapters.ROOT / "build" / "notebooks"


def execute(paths: list[Path], out: Path = OUT) -> dict[str, str]:
    """Runs the chapters under a progress bar; the names of those that failed, and why."""
    from tqdm import tqdm

    out.mkdir(parents=True, exist_ok=True)
    cells = sum(len(chapters.code_cells(chapters.read(path))) for path in paths)
    failed = {}
    with tqdm(total=cells, unit="cell", disable=None) as bar:
        for path in paths:
            bar.set_description(path.stem)
            try:
                format.write(out / path.name, chapters.execute(path, on_cell=bar.update))
            except Exception as error:  # one broken chapter must not hide the others
                failed[path.name] = chapters.error_line(error)
                (out / path.name).unlink(missing_ok=True)
    return failed


def verdicts(paths: list[Path]) -> list[ledger.Verdict]:
    """The verdicts of all executed chapters, in order."""
    return [verdict for path in paths for verdict in ledger.collect(path)]


def main(arguments=None) -> int:
    names = sys.argv[1:] if arguments is None else arguments
    failed = execute(chapters.find(names))
    done = chapters.find(folder=OUT)
    site = pages.build(done).relative_to(chapters.ROOT)
    print("\nThe ledger of verdicts\n")
    print(ledger.verdicts_table(verdicts(done)))
    print(f"\nnotebooks: {OUT.relative_to(chapters.ROOT)}/, pages: {site}/index.html")
    for name, reason in failed.items():
        print(f"{name}: FAILED, {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

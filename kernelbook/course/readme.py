"""The README's tables, chart and versions, from the chapters and the records.

`python -m kernelbook.course.readme [--check]`
"""

import argparse
import re
import sys

from kernelbook import charts, ledger, records
from kernelbook.course import chapters, pages

README = chapters.ROOT / "README.md"
FIGURE = chapters.ROOT / "notebooks" / "figures" / "prefill_step.png"
TOKENS = 8192


def minutes(notebook: dict) -> str:
    """Minutes to read, as the chapter's Question says."""
    return re.search(r"(\d+) minutes", "".join(c["source"] for c in notebook["cells"])).group(1)


def lab(number: str) -> str:
    """Links to the chapter's lab, or a dash."""
    found = sorted((chapters.ROOT / "labs").glob(f"lab{number}_*"))
    return ", ".join(f"[{path.name}](labs/{path.name}/)" for path in found) or "–"


def chapter_table() -> str:
    """A row a chapter: title, the claim on trial, minutes, lab, outcomes."""
    lines = ["| chapter | on trial | minutes | lab | verdict |", "|---|---|---|---|---|"]
    for path in chapters.find():
        notebook = chapters.read(path)
        title, claim = pages.title_and_claim(notebook)
        claim = claim.removeprefix("On trial: ").strip()
        outcomes = ", ".join(f"{v.claim} {v.outcome}" for v in ledger.collect(path))
        link = f"[{title}](notebooks/{path.name})"
        lines.append(
            f"| {link} | {claim} | {minutes(notebook)} | {lab(path.name[:2])} | {outcomes} |"
        )
    return "\n".join(lines)


def verdict_table() -> str:
    """A row a claim: outcome, the recorded figure, the conditions."""
    lines = ["| claim | verdict | recorded figure | when |", "|---|---|---|---|"]
    for path in chapters.find():
        for v in ledger.collect(path):
            lines.append(f"| {v.claim} | **{v.outcome}** | {v.figure} | {v.conditions} |")
    return "\n".join(lines)


def step(variant: str) -> dict[str, float]:
    """A 1B prefill step in ms: attention and the rest."""
    row = records.one("prefill_step", variant=variant, tokens=TOKENS)
    share = records.one("prefill_attention_share", variant=variant, tokens=TOKENS)["share"]
    milliseconds = row["median_us"] / 1e3
    return {"attention": share * milliseconds, "the rest": (1 - share) * milliseconds}


def chart_text() -> str:
    """The figure and the sentence under it."""
    naive, tiled = step("naive"), step("tiled")
    gain = sum(naive.values()) / sum(tiled.values())
    caption = records.caption(records.load("prefill_step"))
    return (
        f"![A prefill step with naive and with tiled attention]"
        f"({FIGURE.relative_to(README.parent)})\n\n"
        f"*One prefill step of {TOKENS:,} tokens at the shape of a 1B model: naive attention "
        f"{sum(naive.values()):.0f} ms, tiled {sum(tiled.values()):.0f} ms, {gain:.1f} times less, "
        f"and the text stays the same. What Amdahl's law predicted stands between. {caption}.*"
    )


def draw() -> None:
    """Write the README's figure."""
    naive, tiled = step("naive"), step("tiled")
    FIGURE.parent.mkdir(exist_ok=True)
    figure = charts.amdahl_bars(
        naive,
        "attention",
        naive["attention"] / tiled["attention"],
        after=tiled,
        title=f"One prefill step, 1B shape, {TOKENS:,} tokens",
        caption=records.caption(records.load("prefill_step")),
    )
    figure.savefig(FIGURE, dpi=110, bbox_inches="tight")


def versions() -> str:
    """What was timed, and what only compiles."""
    info = records.run_info(records.load("attention_prefill")[0]["run"])
    torch = info["torch"].partition("+")[0]
    pins = dict(re.findall(r"^(torch|triton)==([\d.]+)", _requirements(), re.MULTILINE))
    return (
        f"Timed on an {info['gpu']} (driver {info['driver']}) with torch {torch}, triton "
        f"{info['triton']}, Python {info['python']}, {info['date'][:10]}. The pinned torch "
        f"{pins['torch']} and triton {pins['triton']} run all tests in the interpreter and compile "
        "every kernel for sm_80, sm_89 and sm_90; they have not been timed. Other GPUs are "
        "compiled for, not timed."
    )


def _requirements() -> str:
    return (chapters.ROOT / "requirements.txt").read_text()


def filled(text: str) -> str:
    """The README with what stands between its markers made anew."""
    parts = {
        "chart": chart_text(),
        "chapters": chapter_table(),
        "verdicts": verdict_table(),
        "versions": versions(),
    }
    for name, part in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text = re.sub(pattern, lambda m, part=part: f"{m[1]}{part}\n{m[2]}", text, flags=re.DOTALL)
    return text


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    options = parser.parse_args(arguments)
    text = README.read_text()
    new = filled(text)
    if options.check:
        if new != text:
            print("README.md does not say what the chapters and records say: run `make readme`")
        return int(new != text)
    draw()
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

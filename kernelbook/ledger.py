"""The course's books: a verdict for each claim, the kind of each change, the wastes it removed.

A verdict is printed by its chapter as one line, so that it stands in the committed notebook,
is compared by nbval, and can be collected from there into one table:

    C03.1 true: 64x fewer bytes at n = 8192; when: prefill, head_dim 64..128
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from kernelbook import tables

OUTCOMES = ("true", "false", "depends")

CHANGES = {
    "exact": "same function, order of operations aside",
    "within tolerance": "same function, rounded more coarsely",
    "changes the model": "another function: quality must be measured anew",
}

_CLAIM = re.compile(r"C\d\d\.\d+")
_VERDICT = re.compile(r"(C\d\d\.\d+) (true|false|depends): (.*?)(?:; when: (.*))?")
_CHANGE = re.compile(r"change (.+?): (exact|within tolerance|changes the model) \(.*\)")


@dataclass(frozen=True)
class Verdict:
    """A claim's outcome, the recorded figure behind it, and the conditions it holds under."""

    claim: str
    outcome: str
    figure: str
    conditions: str = ""

    def __str__(self) -> str:
        conditions = f"; when: {self.conditions}" if self.conditions else ""
        return f"{self.claim} {self.outcome}: {self.figure}{conditions}"


@dataclass(frozen=True)
class Change:
    """An optimization and the kind of change it makes to what the model computes."""

    name: str
    kind: str

    def __str__(self) -> str:
        return f"change {self.name}: {self.kind} ({CHANGES[self.kind]})"


def _one_line(text, what: str) -> str:
    text = str(text).strip()
    if "\n" in text or "; when: " in text:
        raise ValueError(f"the {what} must be one line without '; when: ', got {text!r}")
    return text


def verdict(claim: str, outcome: str, figure, conditions="") -> None:
    """Print a claim's verdict: verdict("C03.1", "true", figure="64x fewer bytes", conditions=...).

    Raises ValueError for a malformed claim number, an unknown outcome, or an empty figure.
    """
    if not _CLAIM.fullmatch(claim):
        raise ValueError(f"a claim is numbered like C03.1, got {claim!r}")
    if outcome not in OUTCOMES:
        raise ValueError(f"a verdict is one of {', '.join(OUTCOMES)}, got {outcome!r}")
    figure = _one_line(figure, "figure")
    if not figure:
        raise ValueError(f"{claim}: a verdict names the figure it rests on")
    print(Verdict(claim, outcome, figure, _one_line(conditions, "conditions")))


def change(name: str, kind: str) -> None:
    """Print what kind of change an optimization is: exact, within tolerance, changes the model."""
    if kind not in CHANGES:
        raise ValueError(f"a change is one of {', '.join(CHANGES)}, got {kind!r}")
    print(Change(_one_line(name, "name"), kind))


def _printed_lines(notebook) -> list[str]:
    """Every line that the notebook's cells printed, in order."""
    cells = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    texts = [output["text"] for output in outputs if output.get("name") == "stdout"]
    return [line for text in texts for line in "".join(text).splitlines()]


def collect(notebook) -> list[Verdict]:
    """The verdicts printed in an executed notebook, in order. ValueError if one is given twice."""
    matches = [_VERDICT.fullmatch(line) for line in _printed_lines(notebook)]
    verdicts = [Verdict(m[1], m[2], m[3], m[4] or "") for m in matches if m]
    claims = [verdict.claim for verdict in verdicts]
    for claim in claims:
        if claims.count(claim) > 1:
            raise ValueError(
                f"{Path(notebook).name} gives {claims.count(claim)} verdicts on {claim}"
            )
    return verdicts


def changes(notebook) -> list[Change]:
    """The changes printed in an executed notebook, in order."""
    matches = [_CHANGE.fullmatch(line) for line in _printed_lines(notebook)]
    return [Change(match[1], match[2]) for match in matches if match]


def verdicts_table(verdicts: list[Verdict]) -> str:
    """A Markdown table: claim, verdict, figure, conditions."""
    rows = [f"| {v.claim} | {v.outcome} | {v.figure} | {v.conditions} |" for v in verdicts]
    return "\n".join(["| claim | verdict | figure | holds when |", "|---|---|---|---|", *rows])


# --- the wastes, before and after ----------------------------------------------------------


def _fewest_programs(counts) -> int | None:
    """Programs of the narrowest Triton launch: compare with the number of SMs."""
    return min((kernel.programs for kernel in counts.kernels), default=None)


_WASTES = (
    ("trips to HBM", "bytes read", lambda counts: counts.read),
    ("", "bytes written", lambda counts: counts.written),
    ("idle SMs", "fewest programs in a launch", _fewest_programs),
    ("launches", "kernels and operations", lambda counts: counts.launches + len(counts.operations)),
    ("waits", "CPU waits for the GPU", lambda counts: counts.waits_count),
    ("(no waste)", "FLOPs as issued", lambda counts: counts.flops),
)


def _ratio(before: int | None, after: int | None) -> str:
    """ "64.0x less", "1.5x more", "same", or nothing where a count is missing or zero."""
    if before is None or after is None:
        return ""
    if before == after:
        return "same"
    if not before or not after:
        return "all gone" if before else "new"
    low, high = sorted((before, after))
    return f"{high / low:.1f}x {'less' if after < before else 'more'}"


def wastes_table(before, after, names=("before", "after")) -> str:
    """The four wastes of two `meter.Counts` side by side, as plain text."""
    rows = []
    for waste, unit, pick in _WASTES:
        b, a = pick(before), pick(after)
        rows.append([waste, unit, b, a, _ratio(b, a)])
    return tables.plain(["waste", "counted as", *names, "change"], rows, left=2)

"""Recorded measurements: `data/records/<gpu>.jsonl`, a line a measurement, a line a run.

Shipped records are written by `python -m benchmarks` and by nothing else; a reader's own go to
`build/records/<gpu>.jsonl`. Rows are comparable within one run only: its variants were measured
side by side, in one process. A run's line has the key `run_info`; a measurement's has `op`:

    {"op": "decode_attention", "variant": "split_kv", "peer": false, "shape": {"batch": 1},
     "dtype": "bf16", "median_us": 7.3, "p10_us": 7.2, "p90_us": 7.5, "bytes": 4194304,
     "flops": 33554432, "samples": 300, "method": "graph of 31, rotated", "run": "..."}
"""

import json
import math
import os
from pathlib import Path

from kernelbook.run_info import gpu_slug, new_run
from kernelbook.timing import Timing
from kernelbook.work import Work, short

REPOSITORY = Path(__file__).resolve().parent.parent
REQUIRED = ("op", "variant", "peer", "shape", "dtype", "run")
TIMES = ("median_us", "p10_us", "p90_us")
DTYPES = ("bf16", "fp16", "fp32", "float64", "fp8", "int8", "int32", "int64")  # as `short` says


def path_of(gpu: str = "h200", own: bool = False) -> Path:
    """The file of records for a GPU: the shipped one, or the reader's own."""
    return REPOSITORY / ("build" if own else "data") / "records" / f"{gpu}.jsonl"


def shown(path: Path) -> str:
    """A path as readers see it: relative to the repository."""
    path = Path(path)
    return str(path.relative_to(REPOSITORY)) if path.is_relative_to(REPOSITORY) else path.name


def read(path) -> list[dict]:
    """All lines of a records file, checked; ValueError names the line that is wrong."""
    lines = []
    for number, text in enumerate(Path(path).read_text().splitlines(), 1):
        try:
            line = json.loads(text)
            if "run_info" not in line:
                check(line)
        except ValueError as error:
            raise ValueError(f"{shown(path)}, line {number}: {error}") from error
        lines.append(line)
    return lines


def check(row: dict):
    """Raise ValueError for a measurement that must not be recorded, saying what is wrong."""
    missing = [key for key in REQUIRED if row.get(key) is None]
    if missing:
        raise ValueError(f"a measurement needs {', '.join(REQUIRED)}; missing: {missing}")
    if not isinstance(row["peer"], bool) or not isinstance(row["shape"], dict):
        raise ValueError("peer must be true or false, and shape a dict such as {'batch': 1}")
    if row["dtype"] not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {row['dtype']!r}")
    for key, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key} is {value}")
    _check_times(row)
    for key, kind, words in (("bytes", int, "a whole number"), ("flops", int | float, "a number")):
        value = row.get(key)
        if value is not None and (not _is(value, kind) or value < 0):
            raise ValueError(f"{key} must be {words}, 0 or more; got {value!r}")


def _check_times(row: dict):
    given = [key for key in TIMES if row.get(key) is not None]
    if given and given != list(TIMES):
        raise ValueError(f"a time needs {', '.join(TIMES)}; got only {given}")
    for key in given:
        if not _is(row[key], int | float):
            raise ValueError(f"{key} must be a number, got {row[key]!r}")
    if given and not 0 < row["p10_us"] <= row["median_us"] <= row["p90_us"]:
        found = ", ".join(f"{key} {row[key]}" for key in ("p10_us", "median_us", "p90_us"))
        raise ValueError(f"times must be positive and p10 <= median <= p90, got {found}")


def _is(value, kind) -> bool:
    """Whether a value is of a kind of number; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


class Writer:
    """Appends measurements of one run to a file: `with Writer(path) as writer: writer.add(...)`.

    Each line is appended whole, so what was written stays when a later measurement fails.
    """

    def __init__(self, path=None, info: dict | None = None):
        self.info = info or new_run()
        self.run = self.info["run"]
        self.path = Path(path) if path else path_of(gpu_slug(self.info["gpu"]), own=True)
        self.rows: list[dict] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def add(
        self,
        *,
        op: str,
        variant: str,
        shape: dict,
        dtype,
        timing: Timing | None = None,
        work: Work | None = None,
        peer: bool = False,
        **extra,
    ) -> dict:
        """Record one measurement, and return its row.

        timing  what `timing` measured; without it `extra` holds what was counted instead
        work    useful work, for bytes and flops
        peer    what a user would pick instead
        """
        if timing is None and not extra:
            raise ValueError(f"{op}, {variant}: neither a timing nor a counted value was given")
        row = {"op": op, "variant": variant, "peer": peer, "shape": shape, "dtype": short(dtype)}
        if timing is not None:
            row |= {key: round(getattr(timing, key), 4) for key in TIMES}
            row |= {"samples": len(timing.samples), "method": timing.method}
        if work is not None:
            row |= {"bytes": work.bytes, "flops": work.flops}
        row |= {**extra, "run": self.run}
        check(row)
        if not self.rows and not self._has_run():
            append(self.path, self.info)
        append(self.path, row)
        self.rows.append(row)
        return row

    def _has_run(self) -> bool:
        if not self.path.exists():
            return False
        return any("run_info" in line and line["run"] == self.run for line in read(self.path))


def append(path: Path, line: dict):
    """Append one line in a single write, so that no reader or other writer sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(line, allow_nan=False) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def merge(path: Path, info: dict, rows: list[dict]):
    """Put a run's rows into a file in place of all older rows of the same operators."""
    path = Path(path)
    lines = read(path) if path.exists() else []
    ops = {row["op"] for row in rows}
    kept = [line for line in lines if "op" in line and line["op"] not in ops] + rows
    runs = {line["run"]: line for line in lines if "run_info" in line} | {info["run"]: info}
    text = ""
    for run, run_line in runs.items():
        of_run = [row for row in kept if row["run"] == run]
        if of_run:
            text += "".join(
                json.dumps(line, allow_nan=False) + "\n" for line in [run_line, *of_run]
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text)
    temporary.replace(path)


def _matches(row: dict, filters: dict) -> bool:
    """Whether a row has these values, by its own keys or by its shape's; a shape may be partial."""
    for key, wanted in filters.items():
        if key == "shape":
            if any(row["shape"].get(name) != value for name, value in wanted.items()):
                return False
        elif row.get(key, row["shape"].get(key)) != (short(wanted) if key == "dtype" else wanted):
            return False
    return True


def _check_filters(rows: list[dict], filters: dict):
    """ValueError for a filter that no row knows, so that a misspelled name does not match none."""
    known = {key for row in rows for key in (*row, *row["shape"])}
    asked = {*filters, *filters.get("shape", {})}
    if rows and asked - known:
        unknown, names = ", ".join(sorted(asked - known)), ", ".join(sorted(known))
        raise ValueError(f"no such filter: {unknown}; these records know {names}")


def load(
    op: str | None = None, gpu: str = "h200", *, run: str | None = None, own=False, **filters
) -> list[dict]:
    """Measurements of the newest run of each op, or of `run`; [] where nothing matches.

    filters  variant=, peer=, dtype=, shape={...} (part of it), or a shape's entry: batch=1
    own      the reader's measurements instead of the shipped ones
    Raises FileNotFoundError where there are no shipped records of this GPU, and ValueError for a
    filter that no record of the op has, by its own keys or by its shape's.
    """
    path = path_of(gpu, own)
    if not path.exists():
        if own:
            return []
        there = sorted(p.stem for p in path.parent.glob("*.jsonl"))
        raise FileNotFoundError(f"no {shown(path)}; there are records of: {there or 'no GPU'}")
    lines = read(path)
    dates = {line["run"]: line["date"] for line in lines if "run_info" in line}
    rows = [line for line in lines if "op" in line and op in (None, line["op"])]
    _check_filters(rows, filters)
    newest = {}
    for row in rows:  # of equally old runs the last one written
        if dates.get(row["run"], "") >= dates.get(newest.get(row["op"]), ""):
            newest[row["op"]] = row["run"]
    wanted = [row for row in rows if row["run"] == (run or newest[row["op"]])]
    return [row for row in wanted if _matches(row, filters)]


def describe(rows: list[dict]) -> str:
    """What distinguishes rows, as text for an error: variant, dtype and shape, a line each."""
    found = [
        f"  {row['op']}, {row['variant']}, {row['dtype']}, "
        + ", ".join(f"{key}={value}" for key, value in row["shape"].items())
        for row in rows
    ]
    found = list(dict.fromkeys(found))
    return "\n".join(found[:20] + ([f"  and {len(found) - 20} more"] if len(found) > 20 else []))


def one(op: str, gpu: str = "h200", **filters) -> dict:
    """The one measurement that matches; LookupError lists what there is instead."""
    rows = load(op, gpu, **filters)
    if len(rows) == 1:
        return rows[0]
    asked = ", ".join(f"{key}={value!r}" for key, value in filters.items())
    if rows:
        raise LookupError(f"{len(rows)} records of {op} match {asked}:\n{describe(rows)}")
    others = load(op, gpu, own=filters.get("own", False))
    if others:
        raise LookupError(f"no record of {op} matches {asked}; there are:\n{describe(others)}")
    ops = sorted({row["op"] for row in load(None, gpu, own=filters.get("own", False))})
    raise LookupError(f"no record of {op!r}; there are records of: {', '.join(ops) or 'nothing'}")


def run_info(run: str) -> dict:
    """The line of a run: GPU, driver, torch, triton, date, clocks, commit. LookupError if none."""
    for folder in (path_of().parent, path_of(own=True).parent):
        for path in sorted(folder.glob("*.jsonl")):
            for line in read(path):
                if "run_info" in line and line["run"] == run:
                    return line | {"own": folder != path_of().parent}
    raise LookupError(f"no run {run!r} in the records")


def caption(rows: list[dict]) -> str:
    """Where rows come from: "NVIDIA H200, 2026-11-29, torch 2.11.0, triton 3.6.0 (recorded)"."""
    if not rows:
        return "no records"
    texts = {}
    for run in dict.fromkeys(row["run"] for row in rows):
        info = run_info(run)
        versions = f"torch {_plain(info['torch'])}, triton {_plain(info['triton'])}"
        source = "measured here" if info["own"] else "recorded"
        texts[f"{info['gpu']}, {info['date'][:10]}, {versions} ({source})"] = None
    return "; ".join(texts)


def _plain(version: str) -> str:
    """A version without its build: 2.11.0+cu128 -> 2.11.0."""
    return version.split("+")[0]

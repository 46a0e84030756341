"""Chrome trace files, as torch.profiler exports them, read and written.

A row is (name, start in µs, duration in µs, stream, kind); `timeline` gives them meaning.
"""

import gzip
import json
from pathlib import Path

DEVICE = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}
HOST = {"cuda_runtime": "host", "cuda_driver": "host"}
KINDS = DEVICE | HOST | {"cpu_op": "operation"}


def parse(data: bytes) -> dict | list:
    """The JSON of a trace file, gzipped or not."""
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def rows(trace: dict | list, region: str) -> list[tuple]:
    """Rows by start, counted from the first GPU event: what the host did earlier is negative.

    Where the trace has an annotation named `region`, host events outside it are left out.
    """
    raw = trace if isinstance(trace, list) else trace.get("traceEvents", [])
    complete = [e for e in raw if e.get("ph") == "X" and "dur" in e]
    complete = sorted(complete, key=lambda e: (float(e["ts"]), -float(e["dur"])))
    on_device = [e for e in complete if e.get("cat") in DEVICE]
    on_host = _inside(region, complete)
    calls = [e for e in on_host if e.get("cat") in HOST]
    origin = min((float(e["ts"]) for e in on_device), default=0.0)
    return [_row(e, origin) for e in on_device + calls + _outermost(on_host)]


def _row(e: dict, origin: float) -> tuple:
    stream = e.get("args", {}).get("stream", e.get("tid", 0)) if e["cat"] in DEVICE else 0
    return e["name"], float(e["ts"]) - origin, float(e["dur"]), _number(stream), KINDS[e["cat"]]


def _number(stream) -> int:
    """A stream's number; traces write it as a number or as text."""
    digits = "".join(c for c in str(stream) if c.isdigit())
    return int(digits) if digits else 0


def _inside(region: str, events: list[dict]) -> list[dict]:
    """The events that start during the annotated region; all where there is none."""
    marks = [e for e in events if e["name"] == region and e.get("cat") == "user_annotation"]
    if not marks:
        return events
    start = float(marks[0]["ts"])
    end = start + float(marks[0]["dur"])
    return [e for e in events if start <= float(e["ts"]) < end]


def _outermost(events: list[dict]) -> list[dict]:
    """Operations that no other operation of their thread contains."""
    found, ends = [], {}
    for e in events:
        thread = e.get("tid")
        if e.get("cat") == "cpu_op" and float(e["ts"]) >= ends.get(thread, float("-inf")):
            found.append(e)
            ends[thread] = float(e["ts"]) + float(e["dur"])
    return found


def write(path, rows: list[tuple]):
    """Write rows as a Chrome trace, gzipped where the name ends in .gz."""
    categories = {kind: category for category, kind in reversed(KINDS.items())}
    events = [_event(categories[row[-1]], *row) for row in rows]
    data = json.dumps({"traceEvents": events}, separators=(",", ":")).encode()
    path = Path(path)
    # Without a time in its header the same trace gives the same bytes.
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _event(
    category: str, name: str, start_us: float, duration_us: float, stream: int, kind
) -> dict:
    on_device = category in DEVICE
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": round(start_us, 3),
        "dur": round(duration_us, 3),
        "pid": 0 if on_device else "host",
        "tid": stream,
        "args": {"stream": stream} if on_device else {},
    }

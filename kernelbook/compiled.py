"""Kernels compiled offline: registers, spills, shared memory, occupancy, or why not.

Needs no GPU. `compile_launches(fn)` records what `fn` would launch and compiles exactly that in
one other process, because here Triton may be in its interpreter. What only the interpreter
accepts comes back as a refusal in plain words.
"""

import contextlib
import hashlib
import json
import os
import select
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton

from kernelbook import backend, interpreter
from kernelbook._kernel_source import job_of
from kernelbook._launches import refuse_grid, refuse_options
from kernelbook._refusals import explain
from kernelbook.occupancy import machine_of, occupancy

TARGETS = (80, 89, 90)
WORKER = Path(__file__).with_name("_compile_worker.py")
REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Report:
    """What one kernel uses on one target; numbers are None where `refusal` says why not.

    target       90 means sm_90
    registers    of a thread (255 at most)
    spill_bytes  stack of a thread, where registers that do not fit are spilled
    shared_bytes of a program
    occupancy    resident warps / warp slots of an SM; `active_warps` is the numerator
    limited_by   "registers", "shared memory", "warps" or "blocks"
    refusal      the compiler's reason in plain words, or None
    """

    kernel: str
    target: int
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    num_warps: int | None = None
    occupancy: float | None = None
    active_warps: int | None = None
    limited_by: str | None = None
    refusal: str | None = None


def compile_launches(fn, targets=TARGETS, *, timeout_s: float = 60) -> list[Report]:
    """Compile every launch of `fn()` for every target; equal launches once. Nothing runs.

    `fn` is called once a target, and `backend.capability()` answers that target, so a launcher
    that chooses by it is compiled as it would launch there.
    timeout_s  for one kernel and target; after it that kernel is refused and the next one starts.
    Never raises for a kernel's faults: see `Report.refusal`. Raises what `fn` itself raises, and
    ValueError for a target without known limits.
    """
    jobs = {}
    for target in targets:
        capability = machine_of(target).capability
        with backend.assume(capability=capability), interpreter.capture_launches() as launches:
            fn()
        jobs |= dict(_job(launch, target) for launch in launches)
    return _reports(jobs, timeout_s)


def compile_captured(launches, targets=TARGETS, *, timeout_s: float = 60) -> list[Report]:
    """As `compile_launches`, for launches that `interpreter.capture_launches` recorded."""
    jobs = dict(_job(launch, target) for target in targets for launch in launches)
    return _reports(jobs, timeout_s)


def _reports(jobs: dict, timeout_s: float) -> list[Report]:
    """Reports from the cache, and from the compiling process where it has none."""
    known = {key: job if isinstance(job, Report) else _read_cache(key) for key, job in jobs.items()}
    missing = {key: job for key, job in jobs.items() if known[key] is None}
    return list((known | _compile(missing, timeout_s)).values())


def _job(launch, target: int) -> tuple[str, "dict | Report"]:
    """A launch and target as a job and the key of its result in the cache."""
    try:
        refuse_options(launch.options)
        refuse_grid(launch.grid)
    except (TypeError, ValueError) as error:
        refusal = f"{launch.kernel}: {error}"
        return f"{target} {refusal}", Report(launch.kernel, target, refusal=refusal)
    limit = machine_of(target).shared_bytes_per_block
    try:
        job = job_of(launch) | {"target": target, "shared_limit": limit}
        text = json.dumps(job, sort_keys=True)
    except (ValueError, TypeError, OSError, RecursionError) as error:
        endless = isinstance(error, RecursionError)
        why = "it calls itself, which kernels cannot" if endless else f"its source: {error}"
        refusal = f"{launch.kernel}: cannot be compiled: {why}"
        return f"{target} {refusal}", Report(launch.kernel, target, refusal=refusal)
    parts = [text, triton.__version__, WORKER.read_text()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest(), job


def _cache() -> Path:
    """build/compiled in a checkout, else a folder of this user in the temporary one."""
    if (REPOSITORY / "pyproject.toml").exists() and os.access(REPOSITORY, os.W_OK):
        return REPOSITORY / "build" / "compiled"
    return Path(tempfile.gettempdir()) / f"kernelbook-compiled-{os.getuid()}"


def _read_cache(key: str) -> Report | None:
    try:
        return _report(*json.loads((_cache() / f"{key}.json").read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write_cache(key: str, *answer):
    with contextlib.suppress(OSError):  # a cache that cannot be written is only slow
        folder = _cache()
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{key}.{os.getpid()}"
        temporary.write_text(json.dumps(answer))
        temporary.replace(folder / f"{key}.json")


def _report(kernel: str, target: int, answer: dict) -> Report:
    if "error" in answer:
        return Report(kernel, target, refusal=explain(answer, kernel, target))
    machine = machine_of(target)
    used = {name: answer[name] for name in ("registers", "shared_bytes", "num_warps")}
    found = occupancy(machine=machine, **used)
    return Report(
        kernel,
        target,
        spill_bytes=answer["spill_bytes"],
        occupancy=found.fraction,
        active_warps=found.warps,
        limited_by=found.limited_by,
        **used,
    )


def _compile(jobs: dict[str, dict], timeout_s: float) -> dict[str, Report]:
    """Send jobs to a process one by one; a new process only after a crash or a time-out."""
    reports, worker = {}, None
    try:
        for key, job in jobs.items():
            worker = worker or _Worker()
            answer, lost = worker.ask(job, timeout_s)
            if lost:
                worker.close()
                worker = None
                refusal = f"{job['kernel']}: {lost}"
                reports[key] = Report(job["kernel"], job["target"], refusal=refusal)
                continue
            _write_cache(key, job["kernel"], job["target"], answer)
            reports[key] = _report(job["kernel"], job["target"], answer)
    finally:
        if worker:
            worker.close()
    return reports


class _Worker:
    """The compiling process: Python with Triton and without its interpreter."""

    def __init__(self):
        hidden = ("TRITON_INTERPRET", "TRITON_ALLOW_NON_CONSTEXPR_GLOBALS", "TRITON_DEBUG")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        environment["TRITON_CACHE_DIR"] = str(_cache() / "triton")
        environment["CUDA_VISIBLE_DEVICES"] = ""  # it only compiles
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # so that a compiler it started can be ended with it
        )

    def ask(self, job: dict, timeout_s: float) -> tuple[dict | None, str | None]:
        """(answer, None), or (None, why there is none)."""
        try:
            self.process.stdin.write((json.dumps(job) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return None, "the compiler crashed before it read this kernel"
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        if not ready:
            return None, f"the compiler did not finish within {timeout_s:g} s"
        line = self.process.stdout.readline()
        if not line:
            return None, f"the compiler crashed (exit code {self.process.wait()})"
        return json.loads(line), None

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self.process.wait()


def table(reports: list[Report]) -> str:
    """The reports as plain text, a row each; refusals as a line of words."""
    head = ("kernel", "target", "registers", "spill B", "shared B", "warps", "occupancy", "limit")
    rows = [head]
    for r in reports:
        if r.refusal is None:
            share = f"{r.occupancy:.0%}"
            numbers = (r.registers, r.spill_bytes, r.shared_bytes, r.num_warps, share, r.limited_by)
            rows.append((r.kernel, f"sm_{r.target}", *map(str, numbers)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (rows if len(rows) > 1 else [])
    ]
    lines += [f"refused for sm_{r.target}: {r.refusal}" for r in reports if r.refusal]
    return "\n".join(lines)

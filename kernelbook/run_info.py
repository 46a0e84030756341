"""Which machine, versions and commit a run of measurements was taken with."""

import os
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from kernelbook import backend

CLOCKS = "clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"


def gpu_slug(name: str) -> str:
    """A GPU's short name: "NVIDIA H200" -> "h200", "NVIDIA GeForce RTX 4090" -> "rtx-4090"."""
    words = re.sub(r"NVIDIA|Tesla|GeForce|Quadro", " ", name).replace("-", " ").lower().split()
    return "-".join(words[: 2 if words[:1] == ["rtx"] else 1]) or "gpu"


def clocks() -> str:
    """Clocks, power limit and temperature as nvidia-smi reports them now, or "unknown"."""
    if not shutil.which("nvidia-smi"):
        return "unknown"
    command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader", "--id=0"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    values = printed.strip().split(", ")
    names = ("sm", "max sm", "memory", "power limit", "temperature")
    if len(values) != len(names):
        return "unknown"
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))


def commit() -> str:
    """The commit measured at: the variable COMMIT, else git's, else "unknown"."""
    if os.getenv("COMMIT"):
        return os.environ["COMMIT"]
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    folder = Path(__file__).resolve().parent
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return found.stdout.strip() or "unknown"


def new_run() -> dict:
    """A new run's line; RuntimeError without a GPU, because nothing can be measured then."""
    facts = backend.machine()
    if facts is None:
        raise RuntimeError("records are measured on a GPU, and there is none here")
    now = datetime.now(UTC)
    return {
        "run_info": True,
        "run": f"{now:%Y%m%d-%H%M%S}-{gpu_slug(facts.name)}-{uuid4().hex[:4]}",
        "gpu": facts.name,
        "driver": facts.driver,
        "torch": facts.torch,
        "triton": facts.triton,
        "python": facts.python,
        "date": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "clocks": clocks(),
        "commit": commit(),
    }

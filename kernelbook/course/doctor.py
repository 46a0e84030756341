"""What this machine has and lacks for the course. `python -m kernelbook.course.doctor`"""

import os
import platform
import shutil

import torch

from kernelbook import backend


def cpp_compiler() -> str | None:
    """The C++ compiler that torch.compile would call on the CPU, or None."""
    names = filter(None, (os.environ.get("CXX"), "g++", "clang++"))
    return next(filter(None, map(shutil.which, names)), None)


def c_compiler() -> str | None:
    """The C compiler that Triton needs to launch compiled kernels, or None."""
    names = filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))
    return next(filter(None, map(shutil.which, names)), None)


def findings() -> list[str]:
    """One line for each fact that decides what will run here."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    lines = [backend.describe(), f"{versions}, {os.cpu_count()} CPU cores"]
    if not cpp_compiler():
        lines.append("no C++ compiler: cells that compile for the CPU are skipped by name")
    if backend.GPU and not c_compiler():
        lines.append("no C compiler: Triton cannot launch kernels on the GPU; install gcc")
    return lines


if __name__ == "__main__":
    print("\n".join(findings()))

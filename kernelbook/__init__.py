"""Kernels, instruments and a small model for the course "Move less, launch less, wait less"."""

from kernelbook import (
    backend,  # first: decides GPU or interpreter before Triton is imported
    interpreter,
)

interpreter.install()

__all__ = ["backend", "interpreter"]

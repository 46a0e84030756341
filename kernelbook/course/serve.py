"""`make lab`: JupyterLab on chapter 00. `python -m kernelbook.course.serve`"""

import os
import socket
import sys
from pathlib import Path

from kernelbook.course.chapters import ROOT, environment

START = "notebooks/00_start_here.ipynb"
FIRST_PORT = 8888


def free_port(first: int = FIRST_PORT) -> int:
    """The first port from `first` on that nobody listens on."""
    for port in range(first, first + 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise OSError(f"no free port between {first} and {first + 99}")


def has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def command(port: int, *options: str, root: Path = ROOT) -> list[str]:
    """The command that serves the course: chapter 00 in front, no news and no update questions."""
    line = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}"]
    line.append(f"--LabApp.default_url=/lab/tree/{START}")
    line += [f"--port={port}", "--LabApp.news_url=None", "--log-level=WARN"]
    line.append("--KernelManager.transport_encryption=auto")  # without, each kernel warns
    line.append("--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate")
    if os.geteuid() == 0:
        line.append("--allow-root")
    if not has_display():
        line.append("--no-browser")
    return [*line, *options]


def main() -> None:
    port = free_port()
    print("JupyterLab starts: open the link below, end it with Ctrl-C", flush=True)
    line = command(port, *sys.argv[1:])
    os.execve(line[0], line, environment())


if __name__ == "__main__":
    main()

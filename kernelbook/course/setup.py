"""Makes .venv: pinned requirements and kernelbook itself. `python setup.py .venv [test]`.

Runs under the system's Python, before anything is installed: standard library only, and syntax
that an old Python can still read, so that it can say in one line that it is too old.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOG = ROOT / "build" / "setup.log"
NEEDED = (3, 11)
REASONS = (  # what pip printed, what it means; the first that is found counts
    (
        r"No space left on device",
        "the disk is full (a CUDA build of torch and its libraries take about 8 GB)",
    ),
    (
        r"Failed to establish a new connection|NewConnectionError|name resolution|ProxyError"
        r"|Network is unreachable|ConnectTimeout|ReadTimeout|from versions: none",
        "the package index cannot be reached: is there a network?",
    ),
    (r"SSLError|CERTIFICATE_VERIFY", "the package index's certificate was refused"),
    (r"No matching distribution|Could not find a version", "no build for this Python and machine"),
)


SHOWN = {"Collecting", "Downloading", "Building", "Installing"}


class SetupError(Exception):
    """One clear line for the reader."""


def check_python(version=sys.version_info, system=sys.platform):
    """Raises SetupError where the course cannot run: an old Python, another system than Linux."""
    if tuple(version[:2]) < NEEDED:
        raise SetupError(
            "this course needs Python 3.11 or newer and this is {}.{}; name a newer one: "
            "make lab PYTHON=python3.12".format(*version[:2])
        )
    if system != "linux":
        raise SetupError("this course runs on Linux (on Windows inside WSL 2), not on " + system)


def fingerprint(root=ROOT):
    """Changes whenever an installation made with it is out of date."""
    files = [root / "requirements.txt", root / "pyproject.toml"]
    seen = b"".join(file.read_bytes() for file in files) + str(root).encode()
    return hashlib.sha256(seen + platform.python_version().encode()).hexdigest()


def stamp(venv, extra):
    """The file that says that an installation ended well, and of which requirements."""
    return venv / ("installed" + ("-" + extra if extra else ""))


def is_current(venv, extra):
    """Whether there is nothing to do: a test installation includes the reader's."""
    return any(
        file.exists() and file.read_text() == fingerprint()
        for file in {stamp(venv, extra), stamp(venv, "test")}
    )


def explain(log):
    """Why pip failed, in one line, from what it printed."""
    for pattern, reason in REASONS:
        if re.search(pattern, log):
            return reason
    errors = [line for line in log.splitlines() if line.lower().startswith("error")]
    return errors[-1] if errors else "pip failed"


def show(line):
    """Replaces the line shown last, in a terminal."""
    width = shutil.get_terminal_size().columns - 1
    print("\r" + line[:width].ljust(width), end="" if line else "\r", flush=True)


def run(command):
    """Runs `command` into the log, showing one changing line of it; True if it ended well."""
    live = sys.stdout.isatty()
    with LOG.open("a") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            for line in process.stdout:
                log.write(line)
                if live and line.split()[:1] and line.split()[0] in SHOWN:
                    show(line.strip())
        except KeyboardInterrupt:
            process.terminate()
            raise
    if live:
        show("")
    return process.wait() == 0


def works(venv):
    """Whether the environment was made in this place and has a Python and a pip that start."""
    try:
        if str(venv) not in (venv / "pyvenv.cfg").read_text():
            return False
        command = [str(venv / "bin" / "python"), "-m", "pip", "--version"]
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def make_venv(venv):
    """A fresh environment, in place of one that is broken or was left half installed."""
    shutil.rmtree(str(venv), ignore_errors=True)
    if not run([sys.executable, "-m", "venv", str(venv)]):
        raise SetupError("Python cannot make a virtual environment: install python3-venv")


def install(venv, extra):
    """Installs everything, and stamps the environment only when all of it went well."""
    unfinished = venv / "unfinished"
    if unfinished.exists() or not works(venv):
        make_venv(venv)
    for old in venv.glob("installed*"):
        old.unlink()
    unfinished.touch()
    target = f"{ROOT}[{extra}]" if extra else str(ROOT)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    # Compiling every file takes as long as the rest; Python compiles what is imported, once.
    pip += ["--no-compile", "--progress-bar", "off", "--retries", "2"]
    if not run([*pip, "-e", target]):
        raise SetupError(explain(LOG.read_text()) + " (all of pip's output: build/setup.log)")
    stamp(venv, extra).write_text(fingerprint())
    unfinished.unlink()


@contextlib.contextmanager
def alone():
    """Two set-ups at once would spoil each other's environment: the second waits."""
    LOG.parent.mkdir(exist_ok=True)
    with (LOG.parent / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments):
    """Sets up and returns the exit code."""
    start = time.time()
    try:
        check_python()
        venv, extra = ROOT / arguments[0], "".join(arguments[1:2])
        with alone():
            if is_current(venv, extra):
                return 0
            LOG.write_text("")
            print(f"set-up: installing into {arguments[0]} (log: build/setup.log)")
            install(venv, extra)
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up: interrupted; the next call starts afresh", file=sys.stderr)
        return 130
    seconds = time.time() - start
    (LOG.parent / "setup.seconds").write_text(f"{seconds:.0f}")
    print(f"set-up: done in {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    sys.exit(main(sys.argv[1:]))

"""Set-up ends well, or in one clear line, and never leaves a half installation that looks whole."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelbook.course import serve, setup, stages

ROOT = Path(__file__).parents[1]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of what set-up needs, as the root of set-up's module."""
    for name in ("requirements.txt", "pyproject.toml", "Makefile"):
        shutil.copy(ROOT / name, tmp_path)
    course = tmp_path / "kernelbook" / "course"
    course.mkdir(parents=True)
    shutil.copy(setup.__file__, course)
    (course.parent / "__init__.py").touch()
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "LOG", tmp_path / "build" / "setup.log")
    monkeypatch.setattr(setup, "fingerprint", lambda: "the pins of today")
    return tmp_path


@pytest.fixture
def fake(copy, monkeypatch):
    """Set-up whose commands are only noted; they make the environment's folder and end well."""
    calls = []

    def run(command):
        calls.append(command)
        (copy / ".venv").mkdir(exist_ok=True)
        return True

    monkeypatch.setattr(setup, "run", run)
    monkeypatch.setattr(setup, "works", lambda venv: venv.exists())
    return calls


def pip_calls(calls):
    return [command for command in calls if "install" in command]


def test_first_call_installs_and_second_does_nothing(fake):
    assert setup.main([".venv"]) == 0
    assert len(pip_calls(fake)) == 1 and pip_calls(fake)[0][-2] == "-e"
    fake.clear()
    assert setup.main([".venv"]) == 0
    assert fake == []


def test_tests_need_more_than_readers_and_include_it(fake, copy):
    setup.main([".venv"])
    setup.main([".venv", "test"])
    assert pip_calls(fake)[-1][-1] == f"{copy}[test]"
    fake.clear()
    assert setup.main([".venv"]) == 0 and fake == []


def test_changed_pins_install_again(fake, monkeypatch):
    setup.main([".venv"])
    monkeypatch.setattr(setup, "fingerprint", lambda: "the pins of tomorrow")
    setup.main([".venv"])
    assert len(pip_calls(fake)) == 2


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError])
def test_an_interrupted_installation_is_made_anew(fake, copy, monkeypatch, stop):
    def interrupted(command):
        (copy / ".venv").mkdir(exist_ok=True)
        if "install" in command:
            raise stop
        return True

    with monkeypatch.context() as patch:
        patch.setattr(setup, "run", interrupted)
        if stop is KeyboardInterrupt:
            assert setup.main([".venv"]) == 130
        else:
            with pytest.raises(stop):
                setup.main([".venv"])
    assert list((copy / ".venv").glob("installed*")) == []
    (copy / ".venv" / "half_a_package").touch()
    assert setup.main([".venv"]) == 0
    assert not (copy / ".venv" / "half_a_package").exists()


def test_old_python_is_named():
    with pytest.raises(setup.SetupError, match=r"needs Python 3\.11 or newer and this is 3\.9"):
        setup.check_python((3, 9, 18))
    setup.check_python((3, 11, 0), "linux")


def test_other_systems_are_named():
    with pytest.raises(setup.SetupError, match="runs on Linux"):
        setup.check_python((3, 12), "darwin")


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("WARNING: Retrying: NewConnectionError(...)\nERROR: no torch", "is there a network?"),
        ("ERROR: [Errno 28] No space left on device", "disk is full"),
        ("ERROR: No matching distribution found for torch", "no build for this Python"),
        ("Collecting x\nERROR: something else went wrong\n", "something else went wrong"),
    ],
)
def test_failures_of_pip_are_explained_in_one_line(log, reason):
    assert reason in setup.explain(log) and "\n" not in setup.explain(log)


def make(folder, *arguments, **changes):
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=os.environ | changes,
        capture_output=True,
        text=True,
    )


def test_without_a_network_make_ends_in_one_clear_line(copy):
    """The real thing: a real environment, and pip pointed at a port where nobody listens."""
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}
    nowhere |= {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "PIP_NO_CACHE_DIR": "1"}
    ended = make(copy, "lab", PYTHON=sys.executable, **nowhere)
    said = [line for line in ended.stderr.splitlines() if not line.startswith("make")]
    assert ended.returncode and len(said) == 1
    assert "the package index cannot be reached: is there a network?" in said[0]
    assert "Traceback" not in ended.stdout + ended.stderr
    assert list((copy / ".venv").glob("installed*")) == []


def test_without_a_new_enough_python_make_ends_in_one_clear_line(copy):
    names = ("python3", "python3.11", "python3.12", "python3.13", "python3.14")
    for name in names:
        program = copy / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
    ended = make(copy, "lab", PATH=f"{copy}/bin:{os.environ['PATH']}")
    said = [line for line in ended.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1 and "needs Python 3.11 or newer" in said[0]


def test_make_finds_a_newer_python_beside_an_old_one(copy):
    program = copy / "bin" / "python3"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    (copy / "bin" / "python3.12").symlink_to(sys.executable)
    said = make(copy, "-n", "lab", PATH=f"{copy}/bin:{os.environ['PATH']}").stdout
    assert 'py="python3.12"' in said


def test_help_names_every_target():
    said = make(ROOT, "help").stdout
    for target in ("lab", "test", "run", "notebooks", "labs", "grade", "records", "format"):
        assert f"\n{target} " in f"\n{said}"


def test_lab_serves_chapter_00_headless_and_as_root(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    line = serve.command(8888)
    assert any(part.endswith("/lab/tree/notebooks/00_start_here.ipynb") for part in line)
    assert {"--allow-root", "--no-browser"} <= set(line)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("DISPLAY", ":0")
    assert not {"--allow-root", "--no-browser"} & set(serve.command(8888))


# --- the stages of make test ---------------------------------------------------------------


def stage(code, name="one", **options):
    return stages.Stage(name, [[sys.executable, "-c", f"raise SystemExit({code})"]], **options)


def test_all_stages_run_and_failures_are_named(monkeypatch, capsys):
    planned = [stage(1, "bad"), stage(0, "good"), stage(1, "absent", lacks="no browser")]
    monkeypatch.setattr(stages, "stages", lambda: planned)
    monkeypatch.setattr(stages, "set_up", lambda: stages.Stage("set-up", [], result="ok"))
    assert stages.main() == 1
    said = capsys.readouterr().out
    assert [planned[0].result, planned[1].result] == ["failed", "ok"]
    assert "skipped: no browser" in said and "failed: bad" in said
    assert said.splitlines()[-1] == "stages: 2 passed, 1 failed, 1 skipped"


def test_a_stage_fails_when_any_of_its_commands_does():
    both = stages.Stage("both", stage(1).commands + stage(0).commands)
    both.run()
    assert both.result == "failed"


def test_every_test_file_is_in_one_stage():
    commands = [part for s in stages.stages() for command in s.commands for part in command]
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        assert sum(part.endswith(f"tests/{path.name}") for part in commands) == 1, path.name

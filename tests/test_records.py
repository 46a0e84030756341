"""Records: what may be written, what is read back, and what is compared with what."""

import json
import math
import sys
from dataclasses import replace

import pytest
import torch

import benchmarks
from benchmarks import __main__ as runner
from kernelbook import backend, records, run_info
from kernelbook.timing import Timing
from kernelbook.work import Work

TIMING = Timing(10.0, 9.0, 12.0, (9.0, 10.0, 12.0), "events, cold L2")
WORK = Work(flops=100, read=60, written=40)


def info(run="r1", date="2026-11-29T10:00:00Z"):
    return {
        "run_info": True,
        "run": run,
        "gpu": "NVIDIA H200",
        "driver": "580.1",
        "torch": "2.11.0+cu128",
        "triton": "3.6.0",
        "date": date,
        "clocks": "unknown",
        "commit": "abc",
    }


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """An empty repository for records; a function that writes rows of a run."""
    monkeypatch.setattr(records, "REPOSITORY", tmp_path)

    def write(run="r1", date="2026-11-29T10:00:00Z", own=False, **changes):
        with records.Writer(records.path_of(own=own), info(run, date)) as writer:
            for variant, median in changes.pop("medians", {"ours": 10.0, "theirs": 15.0}).items():
                row = {"op": "copy", "shape": {"n": 1024, "batch": 1}, "dtype": torch.bfloat16}
                timing = replace(TIMING, median_us=median, p10_us=median - 1, p90_us=median + 1)
                row |= {"variant": variant, "peer": variant == "theirs", "timing": timing}
                writer.add(**(row | {"work": WORK} | changes))
        return records.path_of(own=own)

    return write


def test_a_row_holds_what_the_format_asks_for(shelf):
    lines = [json.loads(line) for line in shelf().read_text().splitlines()]
    assert lines[0]["run_info"] and lines[0]["gpu"] == "NVIDIA H200" and "op" not in lines[0]
    assert lines[1] == {
        "op": "copy",
        "variant": "ours",
        "peer": False,
        "shape": {"n": 1024, "batch": 1},
        "dtype": "bf16",
        "median_us": 10.0,
        "p10_us": 9.0,
        "p90_us": 11.0,
        "samples": 3,
        "method": "events, cold L2",
        "bytes": 100,
        "flops": 100,
        "run": "r1",
    }


BAD = [
    ({"timing": Timing(math.nan, 9.0, 12.0)}, "median_us is nan"),
    ({"timing": Timing(10.0, 9.0, math.inf)}, "p90_us is inf"),
    ({"timing": Timing(-1.0, -2.0, 0.0)}, "times must be positive"),
    ({"timing": Timing(10.0, 11.0, 12.0)}, "p10 <= median <= p90, got p10_us 11.0"),
    ({"timing": Timing(10.0, 9.0, 9.5)}, "p10 <= median <= p90"),
    ({"timing": None}, "neither a timing nor a counted value"),
    ({"op": None}, r"missing: \['op'\]"),
    ({"shape": [1, 2]}, "shape a dict"),
    ({"tokens_per_s": math.nan}, "tokens_per_s is nan"),
    ({"work": Work(-1, 0, 0)}, "flops must be a number, 0 or more; got -1"),
    ({"work": None, "flops": -1}, "flops must be a number, 0 or more; got -1"),
    ({"work": None, "bytes": 1.5}, "bytes must be a whole number, 0 or more; got 1.5"),
    ({"work": None, "bytes": True}, "bytes must be a whole number"),
    ({"dtype": "bfloat16"}, "dtype must be one of bf16,.*got 'bfloat16'"),
    ({"timing": None, "median_us": "3", "p10_us": 2, "p90_us": 4}, "median_us must be a number"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_measurements_are_refused_and_leave_no_line(shelf, change, message):
    with pytest.raises(ValueError, match=message):
        shelf(**change)
    assert not records.path_of().exists()


def test_counted_values_need_no_time(shelf):
    shelf(timing=None, dram_bytes=123, work=None, medians={"naive": 1})
    row = records.one("copy", dram_bytes=123)
    assert "median_us" not in row and row["variant"] == "naive"


def test_loading_takes_the_newest_run_of_each_op(shelf):
    shelf("new", "2026-11-29T12:00:00Z", medians={"ours": 5.0})
    shelf("old", "2026-11-28T12:00:00Z", medians={"ours": 9.0})
    shelf("older", "2026-11-27T12:00:00Z", op="norm")
    assert {row["run"] for row in records.load("copy")} == {"new"}
    assert {row["run"] for row in records.load()} == {"new", "older"}
    assert [row["median_us"] for row in records.load("copy", run="old")] == [9.0]


def test_filters_match_keys_shapes_and_dtypes(shelf):
    shelf()
    shelf(shape={"n": 2048, "batch": 8})
    assert len(records.load("copy")) == 4
    assert len(records.load("copy", peer=True)) == 2
    assert len(records.load("copy", n=2048)) == 2
    assert len(records.load("copy", shape={"batch": 1})) == 2
    assert len(records.load("copy", dtype=torch.bfloat16, variant="ours")) == 2
    assert records.load("copy", dtype="fp8") == []


def test_one_lists_what_there_is(shelf):
    shelf()
    assert records.one("copy", variant="ours")["median_us"] == 10.0
    with pytest.raises(LookupError, match=r"2 records of copy match n=1024:\n  copy, ours, bf16"):
        records.one("copy", n=1024)
    with pytest.raises(LookupError, match=r"no record of copy matches n=7.*\n  copy, ours"):
        records.one("copy", n=7)
    with pytest.raises(LookupError, match="no record of 'norm'; there are records of: copy"):
        records.one("norm")


def test_a_misspelled_filter_is_named(shelf):
    shelf()
    with pytest.raises(ValueError, match=r"no such filter: varient; these records know batch, .*"):
        records.load("copy", varient="ours")
    with pytest.raises(ValueError, match=r"no such filter: rows;"):
        records.one("copy", shape={"n": 1024, "rows": 1})
    assert records.load("norm", batch=1) == []


def test_caption_says_which_machine_and_whose(shelf):
    shelf()
    expected = "NVIDIA H200, 2026-11-29, torch 2.11.0, triton 3.6.0"
    assert records.caption(records.load("copy")) == f"{expected} (recorded)"
    shelf("mine", own=True)
    assert records.caption(records.load("copy", own=True)) == f"{expected} (measured here)"
    assert records.caption([]) == "no records"


def test_missing_files_and_broken_lines_are_named_without_absolute_paths(shelf, tmp_path):
    with pytest.raises(FileNotFoundError) as missing:
        records.load("copy", gpu="b200")
    assert str(missing.value) == "no data/records/b200.jsonl; there are records of: no GPU"
    assert records.load("copy", own=True) == []
    path = shelf()
    path.write_text(path.read_text() + '{"op": "half\n')
    with pytest.raises(ValueError, match=r"^data/records/h200.jsonl, line 4: ") as broken:
        records.load("copy")
    assert str(tmp_path) not in str(broken.value)


def test_merging_replaces_an_ops_older_rows_and_drops_empty_runs(shelf):
    path = shelf("first")
    shelf("first", op="norm")
    rows = [row | {"run": "second"} for row in records.load("copy")[:1]]
    records.merge(path, info("second"), rows)
    lines = records.read(path)
    assert [(line["run"], line.get("op")) for line in lines] == [
        ("first", None),
        ("first", "norm"),
        ("first", "norm"),
        ("second", None),
        ("second", "copy"),
    ]
    records.merge(path, info("third"), [row | {"op": "norm", "run": "third"} for row in rows])
    assert {line["run"] for line in records.read(path)} == {"second", "third"}


def test_gpu_names_become_short_ones():
    names = {
        "NVIDIA H200": "h200",
        "NVIDIA A100-SXM4-80GB": "a100",
        "Tesla T4": "t4",
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA GeForce RTX 4090": "rtx-4090",
    }
    assert {name: run_info.gpu_slug(name) for name in names} == names


def test_the_commit_comes_from_the_environment_or_git(monkeypatch):
    monkeypatch.setenv("COMMIT", "given")
    assert run_info.commit() == "given"
    monkeypatch.delenv("COMMIT")
    assert run_info.commit()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Benchmarks: a good one, a failing one, another good one and a module that is none."""
    good = (
        "from kernelbook.timing import Timing\n"
        "def run(writer):\n"
        "    writer.add(op=OP, variant='ours', shape={'n': 1}, dtype='fp32',\n"
        "               timing=Timing(2.0, 1.0, 3.0))\n"
    )
    package = tmp_path / "modules"
    package.mkdir()
    (package / "alpha.py").write_text("OP = 'alpha'\n" + good)
    (package / "broken.py").write_text("OP = 'broken'\n" + good + "    raise OSError('no disk')\n")
    (package / "gamma.py").write_text("OP = 'gamma'\n" + good)
    (package / "helper.py").write_text("x = 1\n")
    monkeypatch.setattr(benchmarks, "__path__", [str(package)])
    monkeypatch.setattr(run_info, "new_run", info)
    yield package
    for name in ("alpha", "broken", "gamma"):
        sys.modules.pop(f"benchmarks.{name}", None)


def test_benchmarks_go_on_after_a_failure_and_name_it(folder, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert runner.main(["--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert "[1/3] alpha ... 1 rows" in printed.out and "[3/3] gamma ... 1 rows" in printed.out
    assert "failed: broken: OSError: no disk" in printed.err
    assert [line.get("op") for line in records.read(out)] == [None, "alpha", "gamma"]
    assert str(tmp_path) not in printed.out
    assert runner.main(["alpha", "--out", str(out)]) == 0
    assert len(records.read(out)) == 3  # replaced, not added


def test_benchmarks_can_be_listed_and_wrong_names_are_named(folder, capsys):
    assert runner.main(["--list"]) == 0
    assert capsys.readouterr().out.split() == ["alpha", "broken", "gamma"]
    with pytest.raises(SystemExit):
        runner.main(["delta"])
    assert "no benchmark delta; there are: alpha, broken, gamma" in capsys.readouterr().err


@pytest.mark.skipif(backend.GPU, reason="there is a GPU")
def test_without_a_gpu_benchmarks_say_so_in_one_line(capsys):
    assert runner.main([]) == 2
    assert capsys.readouterr().err == (
        "benchmarks: records are measured on a GPU, and there is none here\n"
    )

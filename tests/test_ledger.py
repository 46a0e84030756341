import json
from types import SimpleNamespace

import pytest

from kernelbook import ledger


def notebook(tmp_path, *texts):
    cells = [
        {
            "cell_type": "code",
            "source": "ledger.verdict(...)",
            "outputs": [{"output_type": "stream", "name": "stdout", "text": text}],
        }
        for text in texts
    ]
    path = tmp_path / "chapter.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ""}, *cells]}))
    return path


def printed(capsys, *args, **kwargs):
    ledger.verdict(*args, **kwargs)
    return capsys.readouterr().out


def test_a_verdict_round_trips_through_a_notebook(tmp_path, capsys):
    first = printed(capsys, "C03.1", "true", figure="64x fewer bytes")
    second = printed(capsys, "C03.2", "depends", figure="1.2x", conditions="n >= 2048; causal")
    assert first == "C03.1 true: 64x fewer bytes\n"
    assert second == "C03.2 depends: 1.2x; when: n >= 2048; causal\n"
    found = ledger.collect(notebook(tmp_path, [first, "not a verdict\n"], second))
    assert [(v.claim, v.outcome, v.figure, v.conditions) for v in found] == [
        ("C03.1", "true", "64x fewer bytes", ""),
        ("C03.2", "depends", "1.2x", "n >= 2048; causal"),
    ]
    assert ledger.verdicts_table(found).splitlines()[2] == "| C03.1 | true | 64x fewer bytes |  |"


def test_two_verdicts_on_one_claim_are_an_error(tmp_path):
    twice = notebook(tmp_path, "C03.1 true: a\nC03.1 false: b\n")
    with pytest.raises(ValueError, match=r"2 verdicts on C03.1"):
        ledger.collect(twice)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("3.1", "true", "x"), "C03.1"),
        (("C03.1", "maybe", "x"), "true, false, depends"),
        (("C03.1", "true", ""), "names the figure"),
        (("C03.1", "true", "a\nb"), "one line"),
    ],
)
def test_malformed_verdicts_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ledger.verdict(*arguments)


def test_the_three_kinds_of_change(tmp_path, capsys):
    for name, kind in zip("abc", ledger.CHANGES, strict=True):
        ledger.change(name, kind)
    found = ledger.changes(notebook(tmp_path, capsys.readouterr().out))
    assert [change.kind for change in found] == list(ledger.CHANGES)
    with pytest.raises(ValueError, match="exact"):
        ledger.change("d", "harmless")


def counts(**values):
    base = {"read": 100, "written": 0, "launches": 0, "waits_count": 0, "flops": 5, "kernels": []}
    return SimpleNamespace(**(base | {"operations": []} | values))


def test_wastes_side_by_side():
    before = counts(written=64, operations=[1, 2], waits_count=1)
    after = counts(read=40, launches=1, kernels=[SimpleNamespace(programs=8)], flops=10)
    lines = ledger.wastes_table(before, after, names=("naive", "tiled")).splitlines()
    table = {line[14:42].strip(): line[42:].split() for line in lines}
    assert table["bytes read"] == ["100", "40", "2.5x", "less"]
    assert table["bytes written"] == ["64", "0", "all", "gone"]
    assert table["fewest programs in a launch"] == ["-", "8"]
    assert table["FLOPs as issued"] == ["5", "10", "2.0x", "more"]
    assert table["kernels and operations"] == ["2", "1", "2.0x", "less"]
    assert table["CPU waits for the GPU"] == ["1", "0", "all", "gone"]
    assert lines[0].split() == ["waste", "counted", "as", "naive", "tiled", "change"]

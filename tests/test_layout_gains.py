"""Eight cells, each with its best tile and splits: the search and its records, dry."""

import pytest
from dry_benchmark import dry, small_heads  # noqa: F401

from benchmarks import _cells, layout_gains
from benchmarks._cells import Cell
from kernelbook import backend, interpreter, timing
from kernelbook.kernels import _split_launch
from kernelbook.kernels import attention_mla as mla

GQA, MLA = Cell("gqa", "contiguous", "bf16"), Cell("mla", "contiguous", "bf16")
TILES = {
    ("gqa", "bf16"): ((16, 64, 4, 2),),
    ("gqa", "int8"): ((16, 64, 4, 2),),
    ("mla", "bf16"): ((16, 64, 4, 2),),
    ("mla", "int8"): ((16, 64, 4, 2),),
}


@pytest.fixture
def small(dry, monkeypatch):  # noqa: F811
    small_heads(monkeypatch)
    monkeypatch.setattr(_cells, "LATENT", 64)
    monkeypatch.setattr(_cells, "ROPE", 16)
    monkeypatch.setattr(layout_gains, "TILES", TILES)
    return dry


def test_all_cells_and_all_tries(small, monkeypatch, capsys):
    """Times fall from choice to choice, so that the last one tried is the best."""

    def falling(calls, sets, bytes_each, **options):
        count = len(calls)
        return {name: timing.Timing.of([count - i + 0.5]) for i, name in enumerate(calls)}

    monkeypatch.setattr(layout_gains, "timed", falling)
    layout_gains.measure(small, 1, 128)
    assert "skipped" not in capsys.readouterr().out
    rows = {row["variant"]: row for row in small.rows if row["op"] == "layout_gains"}
    assert len(rows) == 8 and set(rows) == {cell.name for cell in _cells.CELLS}
    for name, row in rows.items():
        model, layout, kv = name.split("_")
        assert (row["model"], row["layout"], row["kv"]) == (model, layout, kv)
        tries = [x for x in small.rows if x["op"] == "layout_gains_tiles" and x["variant"] == name]
        assert len(tries) == row["tried"] >= 4
        last = tries[-1]["shape"]
        assert [last[field] for field in layout_gains.FIELDS] == row["tile"] == [16, 64, 4, 2]
        assert last["splits"] == row["splits"]
        assert row["default_tile"] != row["tile"] and row["default_us"] > 0 < row["first_tile_us"]
    assert rows["gqa_paged_bf16"]["bytes"] - rows["gqa_contiguous_bf16"]["bytes"] == 4 * 2


@pytest.mark.parametrize("cell", _cells.CELLS, ids=lambda cell: cell.name)
def test_a_choice_reaches_the_kernel_and_nothing_stays(small, cell):
    x = _cells.inputs(2, 192)[0]
    before = (_split_launch.config, _split_launch.choose_splits, mla.config, mla.splits)
    choice = layout_gains.Choice((16, 64, 8, 2), 3)
    with interpreter.capture_launches() as launches:
        layout_gains.chosen(cell, choice, x)
    first = launches[0]
    named = {**first.constexprs, "num_warps": first.num_warps, "num_stages": first.num_stages}
    assert (named["BLOCK_M"], named["BLOCK_N"]) == (16, 64) and named["SPLIT"]
    assert (first.num_warps, first.num_stages) == (8, 2)
    assert first.programs == 3 * 2 * (2 if cell.model == "gqa" else 1)
    assert before == (_split_launch.config, _split_launch.choose_splits, mla.config, mla.splits)


@pytest.mark.parametrize("cell", [GQA, MLA], ids=lambda cell: cell.name)
def test_choices_begin_with_the_launchers_own(small, cell):
    x = _cells.inputs(2, 192)[0]
    found = layout_gains.choices(cell, x)
    with interpreter.capture_launches() as launches:
        _cells.attend(cell, x)
    own = launches[0]
    assert found[0].tile[1] == own.constexprs["BLOCK_N"] and len(found) == len(set(found)) >= 3
    assert found[0].tile[2:] == (own.num_warps, own.num_stages)
    assert min(choice.splits for choice in found) >= 1


def test_wrong_numbers_are_not_timed(small, monkeypatch, capsys):
    monkeypatch.setattr(_cells, "expected", lambda cell, x: _cells.attend(cell, x).double() * 1.1)
    x = _cells.inputs(2, 64)
    monkeypatch.setattr(layout_gains, "timed", lambda calls, *_, **__: calls)
    assert layout_gains.sweep(GQA, x, None, 1) == {}
    assert "skipped, AssertionError: relative error" in capsys.readouterr().out


@pytest.mark.skipif(backend.GPU, reason="measures where there is a GPU")
def test_without_a_gpu_nothing_is_recorded(capsys):
    layout_gains.run(None)
    assert "no GPU" in capsys.readouterr().out

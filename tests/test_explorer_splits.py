"""The explorer of splits counts what the decode kernel does, and its schedule adds up."""

import matplotlib
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from kernelbook import backend, chart_style, explorer_splits, interpreter
from kernelbook.kernels import _split_launch, attention_decode
from kernelbook.work import MACHINES

SHAPES = {
    "batch": st.integers(1, 12),
    "kv_heads": st.integers(1, 8),
    "length": st.integers(1, 9000),
    "splits": st.integers(1, 70),
    "machine": st.sampled_from(list(MACHINES)),
}


@given(**SHAPES)
def test_schedule_does_every_tile_once_and_no_program_waits_for_nothing(**shape):
    one = explorer_splits.plan(**shape)
    work = one.batch * one.kv_heads * one.tiles
    assert (one.schedule > 0).sum() == work
    assert -(-work // one.slots) <= one.time <= work // one.slots + one.each
    assert one.in_use == pytest.approx(work / (one.slots * one.time))
    assert one.time >= -(-one.programs // one.slots) * (one.tiles - (one.used - 1) * one.each)


@given(**SHAPES)
def test_splits_are_those_of_the_kernel(**shape):
    one = explorer_splits.plan(**shape)
    assert one.used == _split_launch.used_splits(one.length, one.splits, one.tile)
    assert (one.used - 1) * one.each < one.tiles <= one.used * one.each
    assert (one.programs + one.idle_in_tail) % one.slots == 0 <= one.idle_in_tail < one.slots


@pytest.mark.parametrize("machine", MACHINES)
def test_default_is_what_the_launcher_chooses(machine):
    one = explorer_splits.plan(2, 4, 3000, machine)
    sms = MACHINES[machine].sms
    q, k = torch.empty(2, 16, 1, 128).bfloat16(), torch.empty(2, 4, 3000, 128).bfloat16()
    with (
        backend.assume(sms=sms, capability=MACHINES[machine].capability),
        interpreter.capture_launches() as launches,
    ):
        attention_decode.attention_decode(q, k, k)
    assert launches[0].grid[0] == one.programs


def test_hand_counted_plans():
    """144 programs of 32 tiles: 12 of them get a second turn of 132 SMs."""
    one = explorer_splits.plan(18, 8, 4096, splits=1)
    assert (one.programs, one.idle_in_tail, one.time) == (144, 120, 64)
    assert one.in_use == pytest.approx(144 * 32 / (132 * 64))
    last = explorer_splits.plan(1, 1, 5 * 128, splits=2, tile=128)  # 3 tiles and 2
    assert (last.each, last.used, last.time) == (3, 2, 3)
    assert str(one).splitlines()[1:] == [
        "  1 split of 32 tiles: 144 programs, 1.09 waves, 120 of 132 places idle in the last turn",
        "  the time of 64 tiles, 55% of the SMs' time in use",
    ]


def test_two_programs_an_sm():
    assert explorer_splits.plan(18, 8, 4096, splits=1, per_sm=2).time == 32


def test_table_marks_the_choice_once():
    lines = explorer_splits.splits_table(1, 8, 8192, counts=(1, 64)).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["1", "16", "64"]
    assert [line.endswith("chosen") for line in lines[2:]] == [False, True, False]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"machine": "B1"}, "machine must be one of H200"),
        ({"length": 0}, "sizes are 1 or more"),
        ({"splits": 0}, "sizes are 1 or more"),
    ],
)
def test_unknown_choices_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        explorer_splits.plan(**arguments)


@pytest.mark.parametrize("splits", [None, 1, 3])
def test_figure_is_legible(splits):
    figure = explorer_splits.splits_figure(8, 8, 4096, splits=splits)
    assert chart_style.overlaps(figure) == []
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time (tiles of KV)", "SM")
    plt.close(figure)


def test_explorer_moves():
    explorer = explorer_splits.splits_explorer()
    machine, splits = explorer.children[0].children
    names = [slider.description for slider in explorer.children[1].children]
    assert names == ["batch", "kv_heads", "length"]
    machine.value, splits.value = "A100", 3
    explorer.children[1].children[0].value = 8

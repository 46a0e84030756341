import math

import matplotlib
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from kernelbook import chart_style, explorers
from kernelbook.guesses import parse
from kernelbook.work import MACHINES

# --- online softmax ------------------------------------------------------------------------

numbers = st.floats(-50, 50)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20), st.integers(1, 8))
def test_online_softmax_is_softmax(pairs, block):
    scores, values = map(list, zip(*pairs, strict=True))
    steps = explorers.softmax_steps(scores, block, values)
    exact = torch.tensor(scores, dtype=torch.float64)
    assert steps[-1].maximum == exact.max().item()
    assert steps[-1].total == pytest.approx((exact - exact.max()).exp().sum().item())
    expected = exact.softmax(0) @ torch.tensor(values, dtype=torch.float64)
    assert steps[-1].acc / steps[-1].total == pytest.approx(expected.item(), abs=1e-9)


def test_rescale_is_one_while_the_maximum_stands():
    steps = explorers.softmax_steps([1, 0, 0.5, 2], 1)
    assert [step.rescale for step in steps] == pytest.approx([0, 1, 1, math.exp(-1)])


def test_masked_blocks_leave_no_nan():
    masked = -math.inf
    steps = explorers.softmax_steps([masked, masked, 1.0, masked, masked, masked], 2, [1] * 6)
    assert [step.total for step in steps] == [0, 1, 1]
    assert all(step.rescale == step.rescale for step in steps)


def test_wrong_arguments_are_refused():
    for arguments in [([], 2), ([1], 0), ([1], 2, [1, 2])]:
        with pytest.raises(ValueError, match="got"):
            explorers.softmax_steps(*arguments)
    with pytest.raises(ValueError, match="blocks 0 to 2, got 3"):
        explorers.softmax_figure(step=3)


def test_table_names_every_state():
    table = explorers.softmax_table(explorers.softmax_steps([0, 1, 2], 2, [1, 1, 1]))
    assert table.splitlines() == [
        "scores  block  max m  rescale  sum l    acc",
        "------  -----  -----  -------  -----  -----",
        "0..1    0 1    1.000    0.000  1.368  1.368",
        "2..2    2      2.000    0.368  1.503  1.503",
        "out = acc / l = 1.000",
    ]


@pytest.mark.parametrize("step", [0, 2])
def test_softmax_figure_is_legible(step):
    figure = explorers.softmax_figure(step=step)
    assert chart_style.overlaps(figure) == []
    assert figure.axes[0].get_xlabel() == "key"
    plt.close(figure)


def test_stepper_moves():
    stepper = explorers.softmax_stepper()
    slider, shown = stepper.children
    slider.value = 2
    assert (slider.min, slider.max) == (0, 2) and shown is stepper.children[1]


# --- roofline ------------------------------------------------------------------------------


def test_decode_matmul_is_bound_by_memory_and_prefill_by_compute():
    decode = explorers.roofline_answer("matmul", m=1, n=4096, k=4096)
    assert decode.work.flops == 2 * 4096**2
    assert decode.work.bytes == 2 * (4096 + 4096**2 + 4096)
    assert decode.bound == "HBM" and "bound by HBM" in str(decode)
    assert explorers.roofline_answer("matmul").bound == "compute"


@pytest.mark.parametrize("operator", explorers.OPERATORS)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_operator_on_every_machine(operator, machine):
    answer = explorers.roofline_answer(operator, "fp16", machine)
    bound = answer.work.seconds(MACHINES[machine], "fp16")
    assert answer.seconds == bound > 0
    assert answer.point().work == answer.work


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"operator": "sort"}, r"operator must be one of matmul, .*got 'sort'"),
        ({"machine": "T4"}, r"T4 has no bf16 matrix units; it has fp16, fp32"),
        ({"machine": "B1"}, r"machine must be one of H200"),
        ({"elements": 3}, r"matmul has the sizes m, n, k; got \['elements'\]"),
        ({"m": 0}, r"sizes are 1 or more"),
    ],
)
def test_unknown_choices_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        explorers.roofline_answer(**arguments)


def test_explorer_offers_the_operators_sizes():
    explorer = explorers.roofline_explorer()
    (operator, dtype, machine), sizes = explorer.children[0].children, explorer.children[1]
    assert [slider.description for slider in sizes.children] == ["m", "n", "k"]
    operator.value = "elementwise chain"
    assert [slider.description for slider in sizes.children] == ["elements"]
    dtype.value, machine.value = "fp16", "T4"


# --- guesses -------------------------------------------------------------------------------


def test_a_notebook_runs_without_a_guess(capsys):
    explorers.guess("How many?", "MB").compare(512)
    assert capsys.readouterr().out == "answer: 512 MB (no guess written)\n"


@pytest.mark.parametrize(
    "written, told",
    [
        ("500", "your guess: 500 MB, close"),
        ("1k", "your guess: 1,000 MB, 1.95x too high"),
        ("51.2", "your guess: 51.2 MB, 10x too low"),
        ("0", "your guess: 0 MB, off"),
        (" ", "no guess written"),
        ("many", "could not read 'many' as a number"),
        ("29,4", "could not read '29,4' as a number"),
        ("29 GB", "could not read '29 GB' as a number"),
        ("512 MB", "your guess: 512 MB, close"),
        ("512mb", "your guess: 512 MB, close"),
    ],
)
def test_a_guess_is_compared(capsys, written, told):
    question = explorers.guess("How many?", "MB")
    question.field.value = written
    question.compare(512)
    assert told in capsys.readouterr().out


def test_numbers_as_people_write_them():
    read = {"1,000": 1000, "1,234,567.5": 1234567.5, "4.2k": 4200, "3e6": 3e6, " 7 ": 7, ".5": 0.5}
    unread = dict.fromkeys(("", "x", "1.2.3", "29,4", "1,0000", "-3", "2 MB"))
    for text, value in (read | unread).items():
        assert parse(text) == value, text


def test_a_number_may_carry_the_fields_unit():
    assert [parse(text, "MB") for text in ("29 MB", "29mb", "4.2k MB", "29", "29 m")] == [
        29,
        29,
        4200,
        29,
        29e6,
    ]
    assert parse("29 GB", "MB") is None
    assert parse("3k", "k") == 3 and parse("3 %", "%") == 3

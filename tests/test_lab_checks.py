"""kernelbook.lab: points by parts, reasons in words, and answers that are refused."""

import kernelbook  # noqa: F401  (before Triton)

# isort: split
import lab_harness
import numpy
import pytest
import torch
import triton
import triton.language as tl

from kernelbook import lab

# As if written in a notebook.
CELL = """
@triton.jit
def halve_kernel(x, out, n, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < n) / 2, mask=place < n)


def halve(x):
    out = torch.empty_like(x)
    halve_kernel[(1,)](x, out, x.numel(), BLOCK=64)
    return out
"""


def cell(source: str, **names) -> dict:
    """What a notebook's cell defines."""
    namespace = {"__name__": "__main__", "torch": torch, "triton": triton, "tl": tl, **names}
    lab_harness.execute(source, namespace)
    return namespace


notebook = cell(CELL)
halve, halve_kernel = notebook["halve"], notebook["halve_kernel"]


def failing(task, title="t", points=1):
    with task.part(points, title):
        raise AssertionError("no")


def test_parts_are_earned_one_by_one(capsys):
    task = lab.Task("task 1", points=5)
    with task.part(2, "first"):
        pass
    failing(task)
    assert task.score() == 2
    printed = capsys.readouterr().out
    assert "✓ 2/2  first" in printed and "✗ 0/1  t\n       no" in printed
    assert "2 of 3 points (2 more are for other shapes" in printed


def test_a_need_costs_the_task_and_gives_one_reason(capsys):
    task = lab.Task("task 1", points=2)
    with task.part(1, "earned"):
        pass
    with task.need("own kernel"):
        raise lab.Refused("library")
    failing(task, "later")
    assert task.score() == 0
    printed = capsys.readouterr().out
    assert "library" in printed and "later" not in printed
    assert [title for title, _ in task.failures] == ["own kernel"]


@pytest.mark.parametrize("failure", [SystemExit(1), ValueError("x"), RecursionError()])
def test_whatever_an_answer_raises_costs_its_part_alone(failure):
    task = lab.Task("task 1", points=1)
    with task.part(1, "part"):
        raise failure
    assert task.score() == 0


def test_stopping_the_notebook_is_no_wrong_answer():
    with pytest.raises(KeyboardInterrupt), lab.Task("task 1", points=1).part(1, "part"):
        raise KeyboardInterrupt


def test_reasons_are_in_the_students_terms():
    assert lab.explain(NotImplementedError()) == "not solved yet"
    assert "solve and run the cell above first" in lab.explain(NameError("name 'f' is not defined"))
    assert lab.explain(ValueError("odd")) == "ValueError: odd"


def test_equal_names_the_likely_mistake():
    lab.equal(3, 3, {3: "never shown"})
    with pytest.raises(AssertionError, match=r"expected 3, got 6\. Likely mistake: twice"):
        lab.equal(6, 3, {6: "twice"})
    with pytest.raises(AssertionError, match="is a `return` missing"):
        lab.equal(None, 3)
    with pytest.raises(AssertionError, match="expected 3, got \\[3\\]"):
        lab.equal([3], 3, {6: "twice"})
    assert lab.equal(None, None) is None


def test_near_allows_rounding_only():
    lab.near(0.1 + 0.2, 0.3)
    with pytest.raises(AssertionError, match=r"expected 0\.3, got 0\.6\. Likely mistake: twice"):
        lab.near(0.1 + 0.5, 0.3, {0.6: "twice"})
    for wrong in (0.30001, float("nan"), None, "0.3"):
        with pytest.raises(AssertionError):
            lab.near(wrong, 0.3)


def test_close_names_shape_and_element():
    want = torch.ones(2, 3)
    lab.close(want.clone(), want, 1e-6)
    wrong = want.clone()
    wrong[1, 2] = float("nan")
    with pytest.raises(
        AssertionError, match=r"shape \[2, 3\]: 1 of 6 .* \[1, 2\]: expected 1, got nan"
    ):
        lab.close(wrong, want, 1e-6)
    with pytest.raises(AssertionError, match=r"expected shape \[2, 3\], got \[3, 2\]"):
        lab.close(want.T, want, 1e-6)
    with pytest.raises(AssertionError, match="is a `return` missing"):
        lab.close(None, want, 1e-6)


def test_hidden_draws_depend_on_the_seed_alone(monkeypatch):
    def numbers():
        return [draw.random() for draw in lab.Task("task 1", 1).draws(3)]

    monkeypatch.setenv("KERNELBOOK_SEED", "a")
    first = numbers()
    assert numbers() == first and len(set(first)) == 3
    monkeypatch.setenv("KERNELBOOK_SEED", "b")
    assert numbers() != first


def test_a_kernel_of_ones_own_is_accepted_and_counted():
    x = torch.randn(50)
    counts = lab.count(halve, x)
    lab.close(counts.result, x / 2, 1e-6)
    lab.one_launch(counts)
    lab.reads_once(counts, 200)
    lab.writes_once(counts, 200)
    with pytest.raises(AssertionError, match="each element is read 2 times"):
        lab.reads_once(counts, 100)
    lab.compiles(halve, x)


def with_numpy(x):
    return torch.from_numpy(numpy.asarray(x) / 2)


def with_a_loop(x):
    return torch.tensor([value / 2 for value in x.tolist()])


def kernel_and_torch(x):
    return halve(x).add_(0)


@pytest.mark.parametrize(
    "answer, reason",
    [
        (lambda x: x / 2, "PyTorch ran: div"),
        (kernel_and_torch, "PyTorch ran: add_"),
        (with_numpy, "the data must stay on the device"),
        (with_a_loop, "the data must stay on the device"),
        (lambda x: x, "no Triton kernel was launched"),
    ],
)
def test_work_outside_a_kernel_is_refused(answer, reason):
    with pytest.raises(lab.Refused, match=reason):
        lab.count(answer, torch.randn(50))


@triton.jit
def theirs_kernel(x, out, n, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < n) / 2, mask=place < n)


@triton.jit
def their_half(x):
    return x / 2


OWN_LAUNCHER = CELL[CELL.index("def halve(") :]
OWN_SHELL = CELL.replace("mask=place < n) / 2", "mask=place < n) * 0 + their_half(0.0)")


@pytest.mark.parametrize(
    "source, name",
    [(OWN_LAUNCHER, "theirs_kernel"), (OWN_SHELL, "their_half")],
    ids=["kernel", "helper of a kernel"],
)
def test_functions_of_another_module_are_refused_whatever_they_claim(monkeypatch, source, name):
    monkeypatch.setattr(theirs_kernel.fn, "__module__", "__main__")
    answer = cell(source, halve_kernel=theirs_kernel, their_half=their_half)["halve"]
    with pytest.raises(lab.Refused, match=rf"{name} comes from test_lab_checks: write your own"):
        lab.compiles(answer, torch.randn(50))


def test_memory_that_no_kernel_writes_shows():
    def half_written(x):
        out = torch.empty_like(x)
        halve_kernel[(1,)](x, out, x.numel() // 2, BLOCK=64)
        return out

    assert lab.count(half_written, torch.randn(50)).result[25:].isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()

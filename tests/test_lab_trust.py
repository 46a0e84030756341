"""Points are for work: what a call moves counts where its result is right, and tricks earn none."""

import kernelbook  # noqa: F401  (before Triton)

# isort: split
import concurrent.futures
import subprocess
import threading
import types

import lab_harness
import numpy
import pytest
import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import _disable_current_modes

from kernelbook import _lab_kernels, lab, meter

COPY = """
@triton.jit
def copy_kernel(x, out, n, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < n), mask=place < n)


def copy(x):
    out = torch.empty_like(x)
    copy_kernel[(1,)](x, out, x.numel(), BLOCK=64)
    return out


def twice(x):
    return copy(x), copy(x)
"""


def cell(source: str, **names) -> dict:
    """What a notebook's cell defines."""
    namespace = {"__name__": "__main__", "torch": torch, "triton": triton, "tl": tl, **names}
    lab_harness.execute(source, namespace)
    return namespace


notebook = cell(COPY)
copy = notebook["copy"]
X = torch.randn(50)


@pytest.mark.parametrize(
    "check",
    [
        lab.one_launch,
        lab.first_right,
        lambda counts: lab.reads_once(counts, 200),
        lambda counts: lab.reads_at_most(counts, 200),
        lambda counts: lab.writes_once(counts, 200),
    ],
)
def test_wastes_count_only_where_the_result_is_right(check):
    counts = lab.count(copy, X)
    with pytest.raises(AssertionError, match="counts where the result is right"):
        check(counts)
    with pytest.raises(AssertionError, match="elements are wrong"):
        lab.close(counts.result, X / 2, 1e-6)
    with pytest.raises(AssertionError, match="counts where the result is right"):
        check(counts)
    lab.close(counts.result, X, 1e-6)
    check(counts)
    with pytest.raises(AssertionError, match="counts where the result is right"):
        check(lab.count(copy, X))  # another call's result


def test_every_tensor_of_a_result_has_to_be_right():
    counts = lab.count(notebook["twice"], X)
    lab.close(counts.result[0], X, 1e-6)
    with pytest.raises(AssertionError, match="counts where the result is right"):
        lab.first_right(counts)
    lab.close(counts.result[1], X, 1e-6)
    lab.first_right(counts)


class Agrees:
    def __eq__(self, other):
        return True

    __hash__ = None


class Pliant(float):
    def __eq__(self, other):
        return True

    __hash__ = float.__hash__

    def __sub__(self, other):
        return 0.0


class Shape(torch.Tensor):
    pass


@pytest.mark.parametrize("got", [Agrees(), Pliant(1), (3, Agrees()), numpy.float64(3)])
def test_only_plain_values_are_compared(got):
    for check in (lab.equal, lab.near):
        with pytest.raises(AssertionError, match="got an object of type"):
            check(got, 3)


def test_only_tensors_themselves_are_compared():
    with pytest.raises(AssertionError, match="expected a tensor, got Shape"):
        lab.close(torch.ones(3).as_subclass(Shape), torch.ones(3), 1e-6)


def hidden(x):
    with _disable_current_modes():
        half = x / 2
    return copy(half)


def in_a_thread(x):
    results = []
    thread = threading.Thread(target=lambda: results.append(x / 2))
    thread.start()
    thread.join()
    return copy(results[0])


def in_a_pool(x):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return copy(pool.submit(lambda: x / 2).result())


def in_a_process(x):
    subprocess.run(["true"])
    return copy(x)


@pytest.mark.parametrize(
    "answer, reason",
    [
        (hidden, "hides PyTorch operations"),
        (in_a_thread, "starts a thread"),
        (in_a_pool, "starts a thread"),
        (in_a_process, "starts a process"),
    ],
)
def test_work_where_the_meter_does_not_look_is_refused(answer, reason):
    with pytest.raises(lab.Refused, match=reason):
        lab.count(answer, X)
    with _disable_current_modes():  # only there
        threading.Thread(target=print).start()


def test_the_meter_does_not_answer_for_the_student():
    def answer(x):
        return meter.count(copy, x).read

    with pytest.raises(RuntimeError, match="not by the meter"):
        lab.ask(answer, X)
    with pytest.raises(RuntimeError, match="does not run inside what it counts"):
        meter.count(answer, X)
    assert meter.count(copy, X).read == 200


def test_answers_are_asked_for_values():
    assert lab.ask(lambda a, b: a + b, 1, 2) == 3
    assert lab.ask(lambda: None, optional=True) is None
    with pytest.raises(AssertionError, match="forgets returned None: is the `return` missing"):
        lab.ask(cell("def forgets(x):\n    x + 1")["forgets"], 1)
    with pytest.raises(AssertionError, match="returns 3 values, got 2"):
        lab.ask(lambda: (1, 2), values=3)
    with pytest.raises(AssertionError, match="returns 3 values, got one int"):
        lab.ask(lambda: 1, values=3)


def passes(*_, **__):
    """Agrees with everything."""


@pytest.mark.parametrize(
    "place, name",
    [
        (lab, "equal"),
        (lab, "close"),
        (lab, "Task"),
        (lab.Task, "score"),
        (lab.Task, "part"),
        (_lab_kernels, "own_kernels"),
        (meter, "count"),
        (meter.Counts, "requested_read"),
    ],
)
def test_changed_functions_of_the_course_earn_nothing(monkeypatch, place, name):
    made, Task = lab.Task("task 1", 1), lab.Task
    with monkeypatch.context() as patch:
        patch.setattr(place, name, passes)
        for act in (lambda: Task("task 1", 1), lambda: Task._trust(made, {})):
            with pytest.raises(lab.Refused, match="changes the course's own functions"):
                act()
    assert lab.Task("task 1", 1).score() == 0


def test_a_changed_body_is_a_changed_function(monkeypatch):
    monkeypatch.setattr(lab.equal, "__code__", passes.__code__)
    with pytest.raises(lab.Refused, match=r"changes the course's own functions .*equal"):
        lab.Task("task 1", 1)


@pytest.mark.parametrize("name", ["lab", "torch", "tl", "meter", "reference"])
def test_names_that_the_tests_use_keep_their_meaning(name):
    test = "task = lab.Task('task 1', points=1)\ntask.score()"
    locked = cell("@lab.given\ndef reference(x):\n    return x", lab=lab, meter=meter)
    assert lab_harness.execute(test, locked) == 0
    proxy = types.SimpleNamespace(**vars(lab))
    locked[name] = proxy
    source = "from kernelbook import lab as real\ntask = real.Task('task 1', points=1)"
    with pytest.raises(lab.Refused, match=f"the name `{name}`"):
        lab_harness.execute(source, locked)


def shown(source: str, test: str) -> str:
    """What a part of a test prints about an answer."""
    names = cell(source, lab=lab)
    lab_harness.execute(
        f"task = lab.Task('task 1', points=1)\nwith task.part(1, 'it'):\n    {test}", names
    )
    return lab.explain(names["task"].failures[0][1])


@pytest.mark.parametrize(
    "source, test, says",
    [
        ("", "lab.ask(answer, 1)", "'answer' is not defined: solve and run the cell above first"),
        ("def answer(x):\n    return scal * x", "lab.ask(answer, 1)", "in the line: return scal"),
        ("def answer(x):\n    assert x > 1", "lab.ask(answer, 1)", "in the line: assert x > 1"),
        (
            "def answer(x):\n    assert x > 1, 'too small'",
            "lab.ask(answer, 1)",
            "an assert of yours failed: too small\nin the line: assert x > 1",
        ),
        ("def answer(x):\n    pass", "lab.ask(answer, 1) + 1", "is the `return` missing?"),
        (COPY.replace("return out", ""), "lab.count(copy, torch.ones(3))", "`return` missing?"),
        (
            COPY.replace("return out", "return out.long()"),
            "lab.count(copy, torch.ones(3))",
            "int64",
        ),
        (
            COPY.replace("mask=place < n), mask", "mask=place < n) * scal, mask"),
            "lab.count(copy, torch.ones(3))",
            "in the line: tl.store(out + place, tl.load(x + place, mask=place < n) * scal",
        ),
    ],
)
def test_reasons_name_the_students_line_and_never_the_tests(source, test, says):
    reason = shown(source, test)
    assert says in reason and test not in reason, reason
    assert ("cell above" in reason) == ("cell above" in says)


def test_nan_is_explained():
    with pytest.raises(AssertionError, match="NaN comes from -inf"):
        lab.close(torch.tensor([1.0, float("nan")]), torch.ones(2), 1e-6, "hint")


def test_a_known_wrong_tensor_is_named():
    mistakes = {"not halved": torch.full((2,), 2.0), "squared": torch.full((2,), 4.0)}
    with pytest.raises(AssertionError, match=r"Likely mistake: squared$"):
        lab.close(torch.full((2,), 4.0), torch.ones(2), 1e-6, "hint", mistakes)
    with pytest.raises(AssertionError, match=r"hint$"):
        lab.close(torch.full((2,), 3.0), torch.ones(2), 1e-6, "hint", mistakes)


def test_same_compares_whole_numbers_and_their_dtype():
    want = torch.tensor([1, 2])
    lab.same(want.clone(), want)
    with pytest.raises(AssertionError, match=r"ids: expected \[1, 2\], got \[1, 3\]. off"):
        lab.same(torch.tensor([1, 3]), want, "off")
    with pytest.raises(AssertionError, match=r"dtype of ids: expected torch.int64, got .*int32"):
        lab.same(want.int(), want)


LIBRARY = """
def softmax(x):
    return torch.softmax(x, dim=-1)
"""
TRICKS = {
    "own_kernels": """
from kernelbook import _lab_kernels

_lab_kernels.own_kernels = lambda counts: None
""",
    "equal": "lab.equal = lab.near = lab.close = lambda *_, **__: None",
    "score": "lab.Task.score = lambda task: task.points",
    "proxy": """
import types

import kernelbook

lab = types.SimpleNamespace(**vars(lab))
lab.count = lambda fn, *args: meter.count(fn, *args)
""",
    "reference": "def causal_mask(n, m):\n    return torch.zeros(n, m, dtype=torch.bool)",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_in_an_answer_earns_nothing(monkeypatch, trick):
    places = [(_lab_kernels, ["own_kernels"]), (lab, ["equal", "near", "close"])]
    for place, names in [*places, (lab.Task, ["score"])]:
        for name in names:  # what the answer changes is put back after the test
            monkeypatch.setattr(place, name, getattr(place, name))
    answer = LIBRARY + TRICKS[trick]
    where = "lab02_task4" if trick == "reference" else "lab02_task3"
    outcome = lab_harness.run("lab02_bytes_and_roofline", {where: answer})
    assert outcome.points[f"{where}_test"] == 0
    if trick != "proxy":  # the test's own import undoes that one
        assert isinstance(outcome.errors[f"{where}_test"], lab.Refused)

"""Lab 04: its numbers against the course's kernels, planted faults, right answers unlike it."""

import lab_harness
import pytest
import torch
from other_roads_lab04 import OTHER_ROADS

from kernelbook import compiled, meter
from kernelbook.kernels.attention_decode import attention_decode

LAB = "lab04_split_kv_decode"

# (task, what is there, what it becomes, the part that turns red)
FAULTS = {
    "a split ends within a tile": (
        "lab04_task2",
        "tl.cdiv(tl.cdiv(length, BLOCK_N), splits) * BLOCK_N",
        "tl.cdiv(length, splits)",
        "right for sequences of 77 and 300 keys in 2 splits",
    ),
    "log-sum-exp without the maximum": (
        "lab04_task2",
        "largest + tl.log(total)",
        "tl.log(total)",
        "right for 2 sequences of 192 keys, 3 splits, 8 query heads and 2 KV heads",
    ),
    "all partial results weigh the same": (
        "lab04_task3",
        "tl.exp(log - base)",
        'tl.where(log > float("-inf"), base * 0 + 1.0, 0.0)',
        "right for 2 sequences, 4 query heads and 3 splits",
    ),
    "the last part of the vocabulary is not merged": (
        "lab04_task5",
        "log = tl.load(part_lse + place, mask=split < splits",
        "log = tl.load(part_lse + place, mask=split < splits - 1",
        "log-sum-exp for 5 rows and a vocabulary of 384 in 3 splits",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_solution_is_a_wrong_number_in_its_task(fault):
    cell, old, new, part = FAULTS[fault]
    answer = lab_harness.plant(lab_harness.answers(LAB)[cell], old, new)
    outcome = lab_harness.run(LAB, {cell: answer})
    assert outcome.errors == {} and set(outcome.lost) == {f"{cell}_test"}
    task = outcome.tasks[f"{cell}_test"]
    assert task.refusal is None, "the kernel must still run, and compile"
    assert all(type(failure) is AssertionError for _, failure in task.failures)
    assert "elements are wrong" in str(dict(task.failures)[part])


def test_a_split_that_begins_where_its_sequence_ends_has_no_output_to_write():
    answer = lab_harness.plant(
        lab_harness.answers(LAB)["lab04_task2"], "if begin < end:", "if begin <= end:"
    )
    outcome = lab_harness.run(LAB, {"lab04_task2": answer})
    assert outcome.errors == {} and set(outcome.lost) == {"lab04_task2_test"}
    ((part, _),) = outcome.tasks["lab04_task2_test"].failures
    assert part == "writes partial results once, and none for splits without keys"


def test_right_answers_by_another_road_earn_everything():
    outcome = lab_harness.run(LAB, OTHER_ROADS)
    assert outcome.errors == {} and outcome.lost == {}, outcome.printed


@pytest.fixture(scope="module")
def names():
    """What the solution's notebook defines, its tests left out."""
    namespace = {"__name__": "__main__"}
    for cell in lab_harness.notebook(LAB).cells:
        grader = cell.metadata.get("nbgrader", {"grade": True})
        if not grader["grade"] and grader["grade_id"] != "lab04_timing":
            lab_harness.execute(cell.source, namespace)
    return namespace


def test_task_1_counts_what_the_meter_counts(names):
    q = torch.zeros(3, 8, 64, dtype=torch.float16)
    k = torch.zeros(3, 2, 500, 64, dtype=torch.float16)
    lengths = torch.full((3,), 500, dtype=torch.int32)
    before = meter.count(names["attend_by_head"], q, k, k, lengths)
    after = meter.count(names["attend_to_split"], q, k, k, lengths, 4)
    for counts, heads in ((before, 1), (after, 4)):  # of a program: queries, and a length
        counts.kv = counts.requested_read - counts.programs * (heads * 64 * 2 + 4)
    assert names["by_head"](3, 8, 2, 500, 132) == (before.programs, 1, before.kv)
    partial = 2 * after.requested_written
    assert names["by_split"](3, 8, 2, 500, 4, 132) == (after.programs, 1, after.kv, partial)


def test_the_three_functions_are_the_courses_decode(names):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 6, 64, generator=generator)
    k, v = (torch.randn(2, 2, 1500, 64, generator=generator) for _ in range(2))
    lengths = torch.tensor([1500, 17], dtype=torch.int32)
    splits = names["choose_splits"](lengths.tolist(), 2, 16)
    got = names["decode"](q, k, v, lengths, splits)
    want = attention_decode(q[:, :, None], k, v, lengths)[:, :, 0]
    assert splits > 1 and torch.allclose(got, want, atol=1e-5)


def test_a_row_of_length_0_is_0(names):
    q, k = torch.ones(1, 2, 64), torch.full((1, 1, 64, 64), float("nan"))
    out = names["decode"](q, k, k, torch.zeros(1, dtype=torch.int32), 3)
    assert out.tolist() == torch.zeros(1, 2, 64).tolist()


def test_the_kernel_to_start_from_is_right_and_compiles(names):
    q, k = torch.randn(2, 6, 64), torch.randn(2, 2, 100, 64)
    lengths = torch.tensor([100, 31], dtype=torch.int32)
    want = attention_decode(q[:, :, None], k, k, lengths)[:, :, 0]
    assert torch.allclose(names["attend_by_head"](q, k, k, lengths), want, atol=1e-5)
    half = q.half(), k.half(), k.half(), lengths
    reports = compiled.compile_launches(lambda: names["attend_by_head"](*half), targets=(80, 90))
    assert [report.refusal for report in reports] == [None, None]

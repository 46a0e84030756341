"""Lab 03: faults planted in its solution, right answers unlike it, and task 6's reports."""

import lab_harness
import pytest
import triton

LAB = "lab03_tiled_attention"

# (task, what is there, what it becomes, the part that turns red)
FAULTS = {
    "no rescale of the sum": (
        "lab03_task1",
        "total * tl.exp(largest - new) +",
        "total +",
        "right where values rise along the row",
    ),
    "no rescale of the accumulator": (
        "lab03_task2",
        "acc * rescale[:, None] +",
        "acc +",
        "right for 16 queries and 256 keys whose scores grow",
    ),
    "last partial tile skipped": (
        "lab03_task2",
        "in range(0, m, BLOCK_N)",
        "in range(0, m // BLOCK_N * BLOCK_N, BLOCK_N)",
        "right for 37 queries and 75 keys, no multiple of any tile",
    ),
    "causal mask off by one": (
        "lab03_task3",
        "<= m - n + row[:, None]",
        "<= m - n + row[:, None] + 1",
        "right for 64 queries and 64 keys",
    ),
    "last tile of the vocabulary skipped": (
        "lab03_task5",
        "in range(0, vocabulary, BLOCK_N)",
        "in range(0, vocabulary - BLOCK_N, BLOCK_N)",
        "log-sum-exp for 5 rows and a vocabulary of 256",
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
    wrong = dict(task.failures)[part]
    assert "elements are wrong" in str(wrong) and "got nan" not in str(wrong)


# Right answers that are not the solution: the tests must not ask for its tiles or its style.
OTHER_WAYS = {
    "lab03_task1": [
        # One running value a lane, merged at the end.
        ("largest = float", 'largest = tl.zeros([BLOCK], tl.float32) + float("-inf")  # float'),
        ("    total = 0.0\n", "    total = tl.zeros([BLOCK], tl.float32)\n"),
        ("tl.maximum(largest, tl.max(block, axis=0))", "tl.maximum(largest, block)"),
        (
            "total * tl.exp(largest - new) + tl.sum(tl.exp(block - new), axis=0)",
            "tl.where(new > -1e38, total * tl.exp(largest - new) + tl.exp(block - new), 0.0)",
        ),
        (
            "    tl.store(out + row, largest + tl.log(total))",
            "    highest = tl.max(largest, axis=0)\n"
            "    merged = tl.sum(total * tl.exp(largest - highest), axis=0)\n"
            "    tl.store(out + row, highest + tl.log(merged))",
        ),
    ],
    "lab03_task2": [
        ("BLOCK_M=64, BLOCK_N=64", "BLOCK_M=32, BLOCK_N=128"),
        ("cdiv(n, 64)", "cdiv(n, 32)"),
        # The scale folded into the exponent's base.
        ("/ 8\n", "* (1.4426950408889634 / 8)\n"),
        ("tl.exp(largest - new)", "tl.exp2(largest - new)"),
        ("tl.exp(scores - new[:, None])", "tl.exp2(scores - new[:, None])"),
    ],
    "lab03_task3": [
        ("BLOCK_M=64, BLOCK_N=64", "BLOCK_M=16, BLOCK_N=64"),
        ("cdiv(n, 64)", "cdiv(n, 16)"),
        # Long rows first.
        ("tl.program_id(0) * BLOCK_M", "(tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M"),
    ],
    "lab03_task4": [
        ("BLOCK_M=64, BLOCK_N=64", "BLOCK_M=16, BLOCK_N=32"),
        ("cdiv(n * group, 64)", "cdiv(n * group, 16)"),
    ],
    "lab03_task5": [
        ("BLOCK_M=16, BLOCK_N=64", "BLOCK_M=16, BLOCK_N=128"),
        ("tl.zeros([BLOCK_M], tl.int32)", "tl.zeros([BLOCK_M], tl.int64)"),
    ],
}


def test_right_answers_unlike_the_solution_earn_everything():
    answers = lab_harness.answers(LAB)
    for cell, edits in OTHER_WAYS.items():
        for old, new in edits:
            answers[cell] = lab_harness.plant(answers[cell], old, new)
    outcome = lab_harness.run(LAB, answers)
    assert outcome.errors == {} and outcome.lost == {}, outcome.printed


@pytest.fixture(scope="module")
def names():
    """What the lab's locked cells define."""
    namespace = {"__name__": "__main__"}
    locked = ["lab03_setup", "lab03_imports", "lab03_task2_example", "lab03_task6_spec"]
    for cell in lab_harness.notebook(LAB).cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") in locked:
            lab_harness.execute(cell.source, namespace)
    return namespace


@pytest.mark.skipif(triton.__version__ != "3.7.1", reason="numbers of the pinned compiler")
@pytest.mark.parametrize(
    "table, target, tile, dtype, stages",
    [
        ("a100", 80, (128, 64), "float16", 3),
        ("h200_deep", 90, (128, 128), "float16", 6),
        ("l4_fp32", 89, (64, 64), "float32", 3),
    ],
)
def test_task_6_shows_what_the_compiler_says(names, table, target, tile, dtype, stages):
    torch, compiled = names["torch"], names["compiled"]
    x = torch.empty(1, 512, 64, dtype=getattr(torch, dtype))
    (now,) = compiled.compile_launches(
        lambda: names["max_score"](x, x, *tile, num_stages=stages), targets=(target,)
    )
    shown = names[table][tile]
    for field in ("registers", "spill_bytes", "shared_bytes", "num_warps", "active_warps"):
        assert getattr(now, field) == getattr(shown, field), field


def test_the_example_of_task_2_is_right(names):
    torch = names["torch"]
    q, k = torch.randn(2, 37, 64), torch.randn(2, 75, 64)
    scores = (q.double() @ k.double().mT / 8).amax(-1)
    assert torch.allclose(names["max_score"](q, k).double(), scores, atol=1e-5)

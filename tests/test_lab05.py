"""Lab 05: faults planted in its solution, right answers unlike it, and its own fixtures."""

import lab_harness
import pytest

LAB = "lab05_kv_layouts"

# (task, what is there, what it becomes, the part that turns red)
FAULTS = {
    "scales of keys alone": (
        "lab05_task1",
        "2 * layout.kv_heads * (layout.head_dim * number + scale)",
        "layout.kv_heads * (2 * layout.head_dim * number + scale)",
        "keys and values of 8 KV heads, bf16 and int8",
    ),
    "shared pages listed once": (
        "lab05_task1",
        "whole * len(lengths) + own_pages",
        "whole + own_pages",
        "pages of 16 for 40, 50 and 37 tokens, of which all share the first 37",
    ),
    "a token behind the end": (
        "lab05_task2",
        "start + place < length",
        "start + place <= length",
        "right for 40 and 21 tokens on pages of 16, 4 query heads, 2 KV heads",
    ),
    "another head's part of the page": (
        "lab05_task2",
        "(page * kv_heads + kv_head) * PAGE",
        "(page * kv_heads + kv_heads - 1 - kv_head) * PAGE",
        "right for 40 and 21 tokens on pages of 16, 4 query heads, 2 KV heads",
    ),
    "rounding up": (
        "lab05_task3",
        "+ 0.5)",
        "+ 0.9)",
        "right for 2 sequences, 2 KV heads and 9 tokens: 36 vectors",
    ),
    "scale of the key after the maximum": (
        "lab05_task4",
        "tl.maximum(largest, tl.max(scores, axis=1))",
        "tl.maximum(largest, tl.max(scores / tl.maximum(key_scale, 1e-3)[None, :], axis=1))",
        "right where scores are around 500, and around -500",
    ),
    "scales of the first page": (
        "lab05_task5",
        "v_scale + vector,",
        "v_scale + kv_head * PAGE + place,",
        "right for 40 and 21 tokens on pages of 16, 4 query heads, 2 KV heads",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_solution_is_a_wrong_number_in_its_task(fault):
    cell, old, new, part = FAULTS[fault]
    answer = lab_harness.plant(lab_harness.answers(LAB)[cell], old, new)
    outcome = lab_harness.run(LAB, {cell: answer})
    assert outcome.errors == {} and set(outcome.lost) == {f"{cell}_test"}
    task = outcome.tasks[f"{cell}_test"]
    assert task.refusal is None, "the answer must still run, and compile"
    assert all(type(failure) is AssertionError for _, failure in task.failures)
    wrong = str(dict(task.failures)[part])
    assert "elements are wrong" in wrong or "expected" in wrong


# Slips that students make: (task, what is there, what it becomes, what the test says of it).
WHERE = 'scores = tl.where(inside[None, :], scores, float("-inf"))'
ADDRESS = "Or is the address wrong? A token's vector"
SLIPS = [
    ("lab05_task1", "(1, 4) if", "(1, 0) if", "the scales are missing"),
    ("lab05_task1", "shared // page_size", "-(-shared // page_size)", "fill in part is shared"),
    ("lab05_task2", "(page * kv_heads", "(page * heads", ADDRESS),
    ("lab05_task2", '"ieee") / 8', '"ieee")', "scores are not divided by 8"),
    ("lab05_task2", WHERE, "pass", "keys behind the end score 0 here"),
    ("lab05_task3", "tl.abs(values)", "values", "the largest is taken without tl.abs"),
    ("lab05_task3", "triton.cdiv(rows, 16)", "rows // 16", "is the last, partial block launched"),
    ("lab05_task4", WHERE, "pass", "keys behind the end score 0 here"),
    ("lab05_task4", "* kv_heads + kv_head) *", "* heads + kv_head) *", ADDRESS),
    ("lab05_task4", "[None, :] / 8", "[None, :]", "scores are not divided by 8"),
    ("lab05_task4", "v_scale + vector", "k_scale + vector", "multiplied by the scale of the key"),
    ("lab05_task5", WHERE, "pass", "keys behind the end score 0 here"),
    ("lab05_task5", "v_scale + vector", "k_scale + vector", "multiplied by the scale of the key"),
    (
        "lab05_task5",
        "0, length, PAGE",
        "0, length // PAGE * PAGE, PAGE",
        "the last, partial one counts",
    ),
]


@pytest.mark.parametrize("cell, old, new, says", SLIPS)
def test_a_slip_is_named(names, capsys, cell, old, new, says):
    answer = lab_harness.plant(lab_harness.answers(LAB)[cell], old, new)
    cells = {each.id.replace("-", "_"): each.source for each in lab_harness.notebook(LAB).cells}
    for source in (answer, cells[f"{cell}_test"]):
        lab_harness.execute(source, names)
    printed = " ".join(capsys.readouterr().out.split())
    assert says in printed and "your kernel moves" not in printed


# Right answers that are not the solution: the tests must not ask for its tiles or its style.
SEVERAL_PAGES_A_TILE = [
    ("start in range(0, length, PAGE)", "start in range(0, length, 2 * PAGE)"),
    ("place = tl.arange(0, PAGE)", "place = tl.arange(0, 2 * PAGE)"),
    (
        "page = tl.load(table + sequence * entries + start // PAGE).to(tl.int64)",
        "entry = start // PAGE + tl.arange(0, 2)\n"
        "        page = tl.load(\n"
        "            table + sequence * entries + entry, mask=entry * PAGE < length, other=0\n"
        "        )\n"
        "        page = tl.reshape(tl.broadcast_to(page[:, None], [2, PAGE]), [2 * PAGE])",
    ),
    ("kv_head) * PAGE + place", "kv_head) * PAGE + place % PAGE"),
]
READ_AHEAD = [
    (
        "    for start in range(0, length, PAGE):\n",
        "    ahead = tl.load(table + sequence * entries)\n"
        "    for start in range(0, length, PAGE):\n",
    ),
    (
        "page = tl.load(table + sequence * entries + start // PAGE).to(tl.int64)",
        "page = ahead\n        ahead = tl.load(table + sequence * entries + start // PAGE + 1)",
    ),
]
WITHOUT_DOT = [
    (
        'tl.dot(queries, tl.trans(keys), input_precision="ieee")',
        "tl.sum(queries.to(tl.float32)[:, None, :] * keys.to(tl.float32)[None, :, :], axis=2)",
    ),
    (
        'tl.dot(weights.to(values.dtype), values, input_precision="ieee")',
        "tl.sum(weights[:, :, None] * values.to(tl.float32)[None, :, :], axis=1)",
    ),
]
OTHER_WAYS = {
    "several pages a tile, other tiles, one scale an axis": {
        "lab05_task1": [("-(-tokens // page_size)", "(tokens + page_size - 1) // page_size")],
        "lab05_task2": SEVERAL_PAGES_A_TILE,
        "lab05_task3": [
            ("ROWS=16", "ROWS=64"),
            ("cdiv(rows, 16)", "cdiv(rows, 64)"),
            # Rounds halves to even, and multiplies by the inverse.
            (
                "tl.floor(values / factor[:, None] + 0.5)",
                "(values * (1 / factor)[:, None] + 12582912.0) - 12582912.0",
            ),
        ],
        "lab05_task4": [
            ("BLOCK_N=32", "BLOCK_N=64"),
            # The scale of keys goes into the keys, in registers.
            (" * key_scale[None, :] / 8", " / 8"),
            (
                'tl.trans(keys), input_precision="ieee"',
                'tl.trans((keys * key_scale[:, None]).to(keys.dtype)), input_precision="ieee"',
            ),
        ],
        "lab05_task5": SEVERAL_PAGES_A_TILE,
    },
    "the page's number read ahead, products without tl.dot": {
        "lab05_task2": READ_AHEAD + WITHOUT_DOT,
        "lab05_task4": WITHOUT_DOT,
        "lab05_task5": READ_AHEAD,
    },
}


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_right_answers_unlike_the_solution_earn_everything(way):
    answers = lab_harness.answers(LAB)
    for cell, edits in OTHER_WAYS[way].items():
        for old, new in edits:
            answers[cell] = lab_harness.plant(answers[cell], old, new)
    outcome = lab_harness.run(LAB, answers)
    assert outcome.errors == {} and outcome.lost == {}, outcome.printed


@pytest.fixture(scope="module")
def names():
    """What the lab's locked cells define."""
    namespace = {"__name__": "__main__"}
    for cell in lab_harness.notebook(LAB).cells:
        grader = cell.metadata.get("nbgrader", {})
        if grader.get("locked") and not grader["grade"] and grader["grade_id"] != "lab05_timing":
            lab_harness.execute(cell.source, namespace)
    return namespace


@pytest.mark.parametrize("lengths, page_size", [([1], 16), ([40, 21, 16], 16), ([95, 64], 64)])
def test_tables_are_in_random_order_and_no_page_has_two_owners(names, lengths, page_size):
    table, taken = names["block_table"](3, lengths, page_size)
    assert sorted(table.flatten().tolist()) == list(range(table.numel()))
    assert table.flatten().tolist() != list(range(table.numel()))
    assert int(taken.sum()) == sum(lengths)
    for pages, length in zip(table.long(), lengths, strict=True):
        assert taken[pages].flatten().tolist() == [True] * length + [False] * (
            taken[pages].numel() - length
        )


def test_the_example_and_the_references_agree_with_the_course_s_kernels(names):
    from kernelbook.kernels import attention_paged, attention_quantized, kv_quantize

    torch = names["torch"]
    q, k, v = torch.randn(2, 6, 64), torch.randn(2, 2, 48, 64), torch.randn(2, 2, 48, 64)
    lengths = torch.tensor([48, 17], dtype=torch.int32)
    want = names["decode_reference"](q.double(), k.double(), v.double(), lengths)
    assert torch.allclose(names["decode"](q, k, v, lengths).double(), want, atol=1e-5)

    table, _ = names["block_table"](5, lengths.tolist(), 16)
    pools = [torch.randn(table.numel(), 2, 16, 64) for _ in range(2)]
    paged = attention_paged.reference(q[:, :, None], *pools, table, lengths)
    mine = names["paged_decode_reference"](q, *pools, table, lengths)
    assert torch.allclose(mine, paged[:, :, 0], atol=1e-5)

    codes, scale = names["quantize_reference"](k)
    course_codes, course_scale = kv_quantize.reference(k)
    assert torch.equal(codes, course_codes) and torch.allclose(scale, course_scale)
    values, value_scale = names["quantize_reference"](v)
    scales = scale, value_scale
    fused = attention_quantized.reference(q[:, :, None], codes, values, *scales, lengths)
    mine = names["quantized_decode_reference"](q, codes, values, *scales, lengths)
    assert torch.allclose(mine, fused[:, :, 0], atol=1e-5)


def test_bytes_of_the_layouts_are_those_of_the_course_s_kernels(names):
    """Task 1's bytes, from `work` of the kernels that read them: one more token, one layer."""
    from kernelbook.kernels import attention_decode, attention_mla, attention_quantized

    torch, layout = names["torch"], names["Layout"]
    bf16, space = torch.bfloat16, dict(names)
    lab_harness.execute(lab_harness.answers(LAB)["lab05_task1"], space)

    def token(work, *shape, **options):
        return work(101, *shape, **options).read - work(100, *shape, **options).read

    def decode(n, work):
        return work(1, 32, 8, n, 128, bf16)

    assert token(decode, attention_decode.work) == space["token_bytes"](layout(1, 8, 128))
    quantized = layout(1, 8, 128, quantized=True)
    assert token(decode, attention_quantized.work) == space["token_bytes"](quantized)
    for is_quantized in (False, True):
        row = layout(1, latent=512, rope=64, quantized=is_quantized)
        read = token(lambda n: attention_mla.work([n], 16, bf16, quantized=is_quantized))  # noqa: B023
        assert read == space["token_bytes"](row)

"""Signatures of decode steps: the walk over a workload, the allocator, and what plans must obey."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelbook import signatures as s

requests = st.lists(
    st.builds(s.Request, st.integers(0, 20), st.integers(1, 60), st.integers(1, 20)),
    min_size=1,
    max_size=12,
)


def test_the_course_workload_gives_the_same_numbers_everywhere():
    found = s.plans(s.workload())
    assert {name: plan.distinct for name, plan in found.items()} == {
        "grown": 503,
        "doubled": 70,
        "slots": 1,
        "paged": 32,
        "bucketed": 6,
    }
    assert {plan.steps for plan in found.values()} == {511}
    assert found["grown"].moved_tokens == 5_829_723
    assert found["bucketed"].peak_tokens == 22_912


def test_one_request_by_hand():
    """Prompt 3, four new tokens: KV of 4 to 7 tokens, a page of 4 and then two."""
    found = s.plans([s.Request(0, 3, 4)], most=2, page_size=4, max_len=8, buckets=(1, 2))
    grown = found["grown"]
    assert [signature.shape for signature in grown.signatures] == [(1, n) for n in (4, 5, 6, 7)]
    assert (grown.distinct, grown.replayed, grown.moved_tokens) == (4, 0, 4 + 5 + 6)
    assert grown.peak_tokens == 6 + 7, "the old tensor lives until its copy is made"
    assert found["paged"].peak_tokens == 8 and found["slots"].peak_tokens == 16
    assert found["slots"].idle_rows == 4 and found["bucketed"].distinct == 1


def test_doubling_moves_only_when_full():
    found = s.plans([s.Request(0, 250, 20)], most=1, max_len=512, buckets=(1,))["doubled"]
    assert [x.shape[1] for x in found.signatures] == [256] * 6 + [512] * 14
    assert found.moved_tokens == 256 and found.distinct == 2


def test_arrivals_wait_for_a_free_row_in_order():
    steps = s.decode_steps([s.Request(0, 1, 3), s.Request(0, 5, 1), s.Request(1, 7, 2)], most=2)
    assert steps == [((0, 2), (1, 6)), ((0, 3), (2, 8)), ((0, 4), (2, 9))]


@given(requests, st.integers(1, 5))
def test_each_request_grows_by_one_until_it_is_done(found, most):
    steps = s.decode_steps(found, most)
    assert all(1 <= len(step) <= most for step in steps)
    for i, request in enumerate(found):
        lengths = [n for step in steps for j, n in step if j == i]
        assert lengths == list(range(request.prompt + 1, request.prompt + request.new + 1))


@given(requests, st.integers(1, 8))
def test_what_paging_makes_enumerable(found, most):
    plans = s.plans(found, most, page_size=8, max_len=80, buckets=(1, 2, 4, 8))
    steps = s.decode_steps(found, most)
    assert all(plan.steps == len(steps) for plan in plans.values())
    assert all(1 <= plan.distinct <= plan.steps for plan in plans.values())
    assert plans["paged"].distinct == len({len(step) for step in steps}) <= most
    assert plans["bucketed"].distinct <= min(4, plans["paged"].distinct)
    assert plans["slots"].distinct == 1
    shapes = {(len(step), max(n for _, n in step)) for step in steps}
    assert plans["grown"].distinct >= len(shapes)
    used = max(sum(n for _, n in step) for step in steps)
    assert used <= plans["paged"].peak_tokens < used + 8 * most
    assert plans["grown"].moved_tokens >= plans["doubled"].moved_tokens
    assert all(plans[name].moved_tokens == 0 for name in ("slots", "paged", "bucketed"))
    assert plans["paged"].idle_rows == 0 <= plans["bucketed"].idle_rows


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=40))
def test_blocks_never_overlap_and_come_back_whole(actions):
    memory, live = s.Memory(), []
    for free, size in actions:
        if free and live:
            memory.release(live.pop(size % len(live)))
        else:
            live.append(memory.allocate(size))
        blocks = sorted([*memory.free, *memory.used.items()])
        assert blocks[0][0] == 0 and sum(size for _, size in blocks) == 2**60
        for (start, length), (after, _) in pairwise(blocks):
            assert start + length == after
    for address in live:
        memory.release(address)
    assert memory.free == [(0, 2**60)]


def test_the_smallest_hole_is_taken():
    memory = s.Memory()
    a, _, c, *_ = (memory.allocate(n) for n in (8, 1, 4, 1, 1))
    memory.release(a)
    memory.release(c)
    assert memory.allocate(3) == c and memory.allocate(5) == a
    assert memory.peak == 15


def test_buckets():
    assert [s.bucket_of(n) for n in (1, 2, 3, 9, 17, 32)] == [1, 2, 4, 16, 32, 32]
    with pytest.raises(ValueError, match="33 fits into none of the buckets"):
        s.bucket_of(33)


@pytest.mark.parametrize(
    ("request_", "message"),
    [(s.Request(0, 0, 1), "needs a prompt"), (s.Request(0, 1, 0), "needs a prompt")],
)
def test_requests_that_are_none(request_, message):
    with pytest.raises(ValueError, match=message):
        s.decode_steps([request_])


def test_a_request_longer_than_its_place():
    with pytest.raises(ValueError, match="grows to 2100 tokens, max_len is 2048"):
        s.plans([s.Request(0, 2000, 100)])


def test_table_is_whole_numbers():
    text = s.table(s.plans(s.workload(4), most=4))
    assert len(text.splitlines()) == 7 and "." not in text

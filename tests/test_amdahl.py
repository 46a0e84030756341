import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelbook import amdahl

shares = st.floats(0, 1)
speedups = st.floats(0.01, 1000)


def test_half_the_step_twice_as_fast():
    assert amdahl.speedup(0.5, 2) == pytest.approx(4 / 3)
    assert amdahl.limit(0.5) == 2
    assert amdahl.predicted_share_after(0.5, 2) == pytest.approx(1 / 3)


@given(shares, speedups)
def test_speedup_is_before_over_after(p, s):
    before, block = 1.0, p
    after = (before - block) + block / s
    assert amdahl.speedup(p, s) == pytest.approx(before / after)
    assert amdahl.predicted_share_after(p, s) == pytest.approx((block / s) / after)
    assert amdahl.speedup(p, s) <= amdahl.limit(p) * (1 + 1e-12)


def test_whole_step_and_nothing():
    assert amdahl.limit(1) == math.inf
    assert amdahl.speedup(0, 100) == 1


def test_share():
    assert amdahl.share(25, 100) == 0.25
    for part, whole in [(101, 100), (-1, 100), (0, 0)]:
        with pytest.raises(ValueError, match="part"):
            amdahl.share(part, whole)


@pytest.mark.parametrize("p, s", [(-0.1, 2), (1.1, 2), (0.5, 0), (0.5, -1), (float("nan"), 2)])
def test_nonsense_is_refused(p, s):
    with pytest.raises(ValueError, match=r"share|speedup"):
        amdahl.speedup(p, s)

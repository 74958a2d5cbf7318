import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from updater.intervals import CONFIDENCE, difference_interval, share_interval

groups = st.integers(1, 500)
shares = st.floats(0, 1)


@given(st.integers(1, 200), st.data())
def test_of_whole_groups_it_is_scipy_s_exact_interval(count, data):
    right = data.draw(st.integers(0, count))
    theirs = binomtest(right, count).proportion_ci(1 - 2 * (1 - CONFIDENCE), "exact")
    assert share_interval(right / count, count) == pytest.approx((theirs.low, theirs.high), abs=1e-6)


@given(shares, groups)
def test_the_share_lies_in_its_interval_and_more_groups_narrow_it(share, count):
    low, high = share_interval(share, count)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1
    narrow_low, narrow_high = share_interval(share, 4 * count)
    assert narrow_high - narrow_low <= high - low + 1e-9


@given(st.lists(st.tuples(st.tuples(shares, groups), st.tuples(shares, groups)), min_size=1, max_size=5))
def test_what_is_lost_one_way_is_gained_the_other(pairs):
    before, after = zip(*pairs, strict=True)
    low, high = difference_interval(before, after)
    assert (-high, -low) == pytest.approx(difference_interval(after, before), abs=1e-9)
    assert low <= sum(b - a for (b, _), (a, _) in pairs) / len(pairs) <= high


def test_a_loss_that_is_none_is_outside_in_at_most_one_of_twenty_on_either_side():
    """Oracle: 2,000 draws of two shares of three families, all truly .3, of 25 groups each."""
    import numpy as np

    drawn = np.random.default_rng(0).binomial(25, 0.3, (2000, 2, 3)) / 25
    ends = [difference_interval([(s, 25) for s in b], [(s, 25) for s in a]) for b, a in drawn]
    assert np.mean([low > 0 for low, _ in ends]) < 0.06
    assert np.mean([high < 0 for _, high in ends]) < 0.06

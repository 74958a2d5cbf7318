"""The rate over a stage: published falls, and no rate above the peak."""

import pytest

from updater.training.schedules import SCHEDULES, cosine, one_cycle, tenths


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_share_is_above_the_peak_and_the_last_is_small(name):
    shares = [SCHEDULES[name](done / 100) for done in range(101)]
    assert max(shares) == pytest.approx(1)
    assert 0 <= min(shares) == shares[-1] <= 0.0011


def test_one_cycle_rises_in_a_fifth_and_falls_after_it():
    shares = [one_cycle(done / 100) for done in range(101)]
    assert shares[0] == pytest.approx(0.05)
    assert shares[:21] == sorted(shares[:21])
    assert shares[20:] == sorted(shares[20:], reverse=True)


def test_tenths_falls_three_times():
    assert [tenths(done / 170) for done in (0, 59, 60, 101, 102, 144, 145, 169)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    )


def test_cosine_is_half_way_in_the_middle():
    assert [cosine(done) for done in (0, 0.5, 1)] == pytest.approx([1, 0.5, 0])

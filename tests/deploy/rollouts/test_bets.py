"""Bets on means: fair while the claim holds, quick where it does not, late or early."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.rollouts.bets import LOG_20, Bets, interval

BOUNDS = st.floats(0.005, 0.9)


@given(BOUNDS, st.floats(0, 1), st.booleans())
def test_a_bet_pays_at_most_one_on_average_where_the_mean_is_on_the_claimed_side(
    bound: float, part: float, net: bool
) -> None:
    low = -1.0 if net else 0.0
    # Of all x with a mean of at most the bound, two points at the ends vary the most.
    ends, mean = np.array([low, 1.0]), low + part * (bound - low)
    chance = np.array([1 - mean, mean - low]) / (1 - low)
    pays = [Bets(np.array([bound]), low) for _ in ends]
    for bets, x in zip(pays, ends, strict=True):
        bets.bet(float(x))
    above = np.exp([bets.log_above[0] for bets in pays])
    assert chance @ above <= 1 + 1e-9
    mean = bound + part * (1 - bound)
    chance = np.array([1 - mean, mean - low]) / (1 - low)
    below = np.exp([bets.log_below[0] for bets in pays])
    assert chance @ below <= 1 + 1e-9


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5)), max_size=20))
def test_equal_x_may_be_bet_on_at_once(runs: list[tuple[float, int]]) -> None:
    at_once, singly = (Bets(np.array([0.03])) for _ in range(2))
    for x, times in runs:
        at_once.bet_below(x, times)
        for _ in range(times):
            singly.bet_below(x)
    np.testing.assert_allclose(at_once.log_below, singly.log_below, atol=1e-9)


@given(st.lists(st.floats(0, 1), max_size=60))
def test_the_interval_narrows_around_the_mean_and_its_ends_are_in_order(seen: list[float]) -> None:
    bets = Bets(np.geomspace(0.001, 0.9, 30))
    for x in seen:
        bets.bet(x)
    low, high = interval(bets)
    assert 0 <= low <= high <= 1


def test_what_is_not_there_changes_nothing() -> None:
    two = Bets(np.array([0.03, 0.03]))
    two.bet(np.array([0.2, np.nan]))
    assert two.log_above[1] == pytest.approx(0)
    assert two.log_below[1] == pytest.approx(0)
    assert list(two.seen) == [1, 0]


def test_a_challenger_that_turns_bad_after_an_hour_of_good_is_noticed_within_twelve_units() -> None:
    bets = Bets(np.array([0.03]))
    for _ in range(360):
        bets.bet(0.0)
    assert bets.log_below[0] > LOG_20
    assert bets.log_above[0] < 0
    units = 0
    while bets.log_above[0] < np.log(1 / 0.004):
        bets.bet(0.8)
        units += 1
    assert units <= 12

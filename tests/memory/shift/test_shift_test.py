import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtri

from memory.shift.shift_test import BETS, ShiftTest, began, log_bets, share_of_budget


def test_a_p_value_is_the_rank_among_the_kept_scores_with_the_new_one():
    test = ShiftTest(seed=1, gather=4, most=4)
    assert [test.observe(score) for score in (1.0, 2.0, 3.0, 4.0)] == [None] * 4
    p = test.observe(2.5)
    # Two of four are above it, and it ties with itself alone: (2 + u) / 5.
    assert p is not None
    assert 2 / 5 <= p <= 3 / 5


def test_ties_are_broken_at_random_over_all_that_tie():
    p_values = []
    for seed in range(300):
        test = ShiftTest(seed, gather=4, most=4)
        for _ in range(4):
            test.observe(1.0)
        p_values.append(test.observe(1.0))
    # Uniform on (0, 1): its mean has a standard deviation of 1 / sqrt(12 * 300) = 0.017.
    assert np.mean(np.array(p_values, float)) == pytest.approx(0.5, abs=0.06)
    assert min(p for p in p_values if p is not None) < 0.05


@pytest.mark.parametrize("place", range(len(BETS)))
def test_a_bet_pays_on_average_what_it_cost(place):
    paid, _ = quad(lambda z: math.exp(log_bets_of_normal(z)[place]) * normal(z), -12, 12)
    assert paid == pytest.approx(1, abs=1e-6)


def log_bets_of_normal(z):
    return np.array([math.log(1 - share + share * math.exp(d * z - d * d / 2)) for share, d in BETS])


def normal(z):
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def test_a_bet_is_the_likelihood_ratio_of_a_shifted_normal_score():
    # At p = 0.1 the score lies 1.2816 deviations up; a shift of 1 makes it exp(1.2816 - 0.5) times as likely.
    assert log_bets(0.1)[BETS.index((1, 1.0))] == pytest.approx(1.2815516 - 0.5)
    # Of a share of 0.3 the pay is 0.7 + 0.3 of that: the others pay what they cost.
    pay = 0.7 + 0.3 * math.exp(1.2815516 - 0.5)
    assert log_bets(0.1)[BETS.index((0.3, 1.0))] == pytest.approx(math.log(pay))
    assert log_bets(0.1) == pytest.approx(log_bets_of_normal(float(-ndtri(0.1))))


def test_the_capital_after_one_bet_by_hand():
    test = ShiftTest(seed=3, gather=1, most=1)
    test.observe(0.0)
    p = test.observe(1.0)
    assert p is not None
    left = 2 ** (-1 / 8)
    # Before anything was seen, sums are taken to vary tenfold, and the margin is 1.75.
    won = (1 - left) * np.exp(log_bets(p) / (1 + 1.75 * 9)).mean()
    assert test.log_e == pytest.approx(math.log(won + left))


@given(st.integers(1, 10**6))
def test_the_shares_of_all_tests_together_are_the_budget(tests):
    first = sum(share_of_budget(number) for number in range(1, min(tests, 500) + 1))
    assert 0 < first < 1
    assert share_of_budget(tests) > share_of_budget(tests + 1) > 0
    if tests <= 500:
        assert first == pytest.approx(1 - (tests + 1) ** -0.5)


@given(st.lists(st.floats(-1e6, 1e6, width=32), max_size=140), st.integers(0, 140))
def test_a_test_that_was_put_away_and_taken_up_again_goes_on_as_it_was(scores, stop):
    straight, interrupted = ShiftTest(7, 5, 8), ShiftTest(7, 5, 8)
    for score in scores[:stop]:
        assert straight.observe(score) == interrupted.observe(score)
    taken_up = ShiftTest.from_bytes(interrupted.to_bytes())
    assert taken_up is not None
    interrupted = taken_up
    for score in scores[stop:]:
        assert straight.observe(score) == interrupted.observe(score)
    assert straight.log_e == interrupted.log_e
    assert len(straight.kept) == min(len(scores), 8)


def in_bursts(items, length, correlation, rng):
    """Normal scores in bursts of a length, of which the first may have begun before."""
    of_burst = np.repeat(rng.normal(size=items // length + 2), length)[rng.integers(length) :][:items]
    return math.sqrt(correlation) * of_burst + math.sqrt(1 - correlation) * rng.normal(size=items)


def variance_after(scores):
    test = ShiftTest(3, gather=100, most=1000)
    for score in scores:
        test.observe(float(score))
    return test.variance


@pytest.mark.parametrize(
    ("length", "correlation", "low", "high"),
    # Sums vary 1 + (length - 1) * correlation times as much: 1, 3.5 and 10.5; 0.65 of the last excess shows.
    [(1, 0.0, 0.7, 1.5), (6, 0.5, 2.2, 4.2), (20, 0.5, 5, 11)],
)
def test_the_variance_of_sums_tells_how_many_items_count_as_one(length, correlation, low, high):
    scores = in_bursts(2000, length, correlation, np.random.default_rng(length))
    assert low < variance_after(scores) < high


def test_a_shift_that_stays_is_not_taken_for_a_burst():
    scores = np.random.default_rng(4).normal(size=1300)
    assert variance_after(scores + 0.5 * (np.arange(1300) >= 1000)) < variance_after(scores) + 0.5


def alarms_in_bursts(streams, items, length, correlation):
    """How many streams of reals in bursts raise an alarm, held to the limit of a first test."""
    budget = 0.05 * share_of_budget(1)
    made = (in_bursts(items, length, correlation, np.random.default_rng(s)) for s in range(streams))
    tests = (ShiftTest(s, gather=100, most=1000) for s in range(streams))
    return sum(raised(test, scores, budget) is not None for test, scores in zip(tests, made, strict=True))


@pytest.mark.parametrize("length", [6, 20])
def test_bursts_raise_no_alarm_and_would_if_items_counted_as_independent(length, monkeypatch):
    assert alarms_in_bursts(10, 500, length, 0.5) == 0
    monkeypatch.setattr("memory.shift.shift_test._MARGIN", 0.0)
    assert alarms_in_bursts(10, 500, length, 0.5) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(("length", "correlation"), [(6, 0.2), (6, 0.5), (20, 0.5)])
def test_at_most_one_stream_in_twenty_raises_an_alarm_by_bursts(length, correlation):
    assert alarms_in_bursts(60, 3000, length, correlation) <= 0.05 * 60


def false_alarms(streams, items, budget):
    """The share of streams of one distribution, of a kind that differs, that ever raise an alarm."""
    alarms = 0
    for stream in range(streams):
        rng = np.random.default_rng(stream)
        kinds = (rng.normal(size=items), rng.exponential(size=items) ** 3, np.round(rng.normal(size=items)))
        alarms += raised(ShiftTest(stream, gather=20, most=40), kinds[stream % 3], budget) is not None
    return alarms / streams


def raised(test, scores, budget):
    """After how many scores the evidence reaches 1 / budget; None: never."""
    for count, score in enumerate(scores, start=1):
        test.observe(float(score))
        if test.log_e >= -math.log(budget):
            return count
    return None


@pytest.mark.parametrize(
    "streams", [pytest.param(100, id="few"), pytest.param(600, id="many", marks=pytest.mark.slow)]
)
def test_the_share_of_streams_without_a_shift_that_raise_an_alarm_is_bounded(streams):
    # Looked at after each item; the reference is far smaller than the stream, and forgets.
    assert false_alarms(streams, items=150, budget=0.2) <= 0.2


def test_ranks_without_the_new_score_among_them_would_raise_false_alarms(monkeypatch):
    def naive(self, score):
        if len(self.kept) < self.gather:
            self.kept = np.append(self.kept, np.float32(score))
        else:
            self._bet(float(np.clip((self.kept > score).mean(), 1e-3, 1 - 1e-3)))

    monkeypatch.setattr("memory.shift.shift_test._MARGIN", 0.0)  # else what never was estimated holds it back
    monkeypatch.setattr(ShiftTest, "observe", naive)
    assert false_alarms(100, items=150, budget=0.2) > 0.3


def test_a_shift_raises_an_alarm_soon_and_is_found_where_it_began():
    rng = np.random.default_rng(5)
    test = ShiftTest(5, gather=100, most=1000)
    assert raised(test, rng.normal(size=600), 0.01) is None
    p_values = [test.observe(float(score)) for score in rng.normal(size=100)]
    taken = 0
    while test.log_e < -math.log(0.01):
        taken += 1
        p_values.append(test.observe(float(rng.normal() + 1.2)))  # an item AUC of 0.80
    assert taken <= 40
    assert abs(began(np.array(p_values, float)) - 100) <= 8


def test_what_is_kept_follows_a_source_that_drifts_slowly():
    rng = np.random.default_rng(9)
    test = ShiftTest(9, gather=50, most=50)
    drifting = rng.normal(size=3000) + np.arange(3000) / 1500  # two deviations over 3,000 items
    assert raised(test, drifting, 0.01) is None
    assert test.kept.mean() == pytest.approx(2, abs=0.5)

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap
from sklearn.metrics import roc_auc_score

from updater.benchmark.report.results import Resamples, aurocs, caught_at, caught_shares, interval, shares
from updater.measures import auroc


def samples(count=60):
    rng = np.random.default_rng(3)
    return rng.normal(1, 1, count), rng.normal(0, 1, 2 * count)


def drawn_of_both(first, second):
    strata = ["first"] * len(first) + ["second"] * len(second)
    groups = [str(number) for number in range(len(strata))]
    drawn = Resamples(groups, strata)
    return drawn.of(groups[: len(first)]), drawn.of(groups[len(first) :])


def test_the_interval_agrees_with_scipys_percentile_bootstrap_of_scikit_learns_area():
    def area(first, second):
        return float(roc_auc_score([1] * len(first) + [0] * len(second), np.concatenate([first, second])))

    expected = bootstrap(
        samples(), area, vectorized=False, method="percentile", n_resamples=1500, rng=np.random.default_rng(5)
    ).confidence_interval
    found = interval(aurocs(*samples(), *drawn_of_both(*samples())))
    assert found == pytest.approx(tuple(expected), abs=0.015)


def test_the_interval_of_a_share_is_the_normal_one():
    right = samples(400)[0] > 0.5
    error = math.sqrt(right.mean() * (1 - right.mean()) / len(right))
    assert interval(shares(right, drawn_of_both(right, right)[0]), 0.9) == pytest.approx(
        (right.mean() - 1.645 * error, right.mean() + 1.645 * error), abs=0.15 * error
    )


scores = st.lists(st.integers(0, 6), min_size=1, max_size=9)


@given(scores, scores, st.integers(0, 99))
def test_a_draw_has_the_figure_of_its_images_each_as_often_as_it_is_drawn(unknown, known, seed):
    rng = np.random.default_rng(seed)
    of_unknown, of_known = (rng.integers(0, 4, (5, len(one))).astype(np.uint16) for one in (unknown, known))
    areas = aurocs(unknown, known, of_unknown, of_known)
    caught = caught_shares(unknown, known, of_unknown, of_known)
    for number in range(5):
        pair = np.repeat(unknown, of_unknown[number]), np.repeat(known, of_known[number])
        assert areas[number] == pytest.approx(auroc(*pair), nan_ok=True)
        assert caught[number] == pytest.approx(caught_at(*pair), nan_ok=True)


def test_each_stratum_keeps_its_number_and_a_group_is_drawn_as_one():
    groups = ["a", "a", "b", "c", "d", "d", "e", "f"]
    drawn = Resamples(groups, ["x", "x", "x", "x", "y", "y", "y", "y"], rounds=200).of(groups)
    assert np.array_equal(drawn[:, 0], drawn[:, 1])
    assert np.array_equal(drawn[:, 4], drawn[:, 5])
    assert set(drawn[:, [0, 2, 3]].sum(1)) == set(drawn[:, [4, 6, 7]].sum(1)) == {3}
    assert len(np.unique(drawn, axis=0)) > 50


def test_the_same_images_are_drawn_each_time_and_another_seed_draws_others():
    groups = [str(number) for number in range(20)]
    first, again, other = (Resamples(groups, groups[:1] * 20, seed=seed).of(groups) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_draws_without_a_value_are_left_out_and_nothing_has_no_interval():
    assert interval([math.nan, 1.0, 1.0]) == (1, 1)
    assert interval([math.nan]) is None
    nothing = np.zeros((3, 0), np.uint16)
    one = np.ones((3, 1), np.uint16)
    assert np.isnan(aurocs([], [1.0], nothing, one)).all()
    assert np.isnan(caught_shares([], [1.0], nothing, one)).all()
    assert np.isnan(caught_shares([1.0], [], one, nothing)).all()

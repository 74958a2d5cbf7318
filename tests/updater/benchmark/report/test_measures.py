"""The measures of the papers' tables against figures worked out by hand, and scikit-learn's."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_curve

from updater.benchmark.report.results import aa_m, af, af_paper, average_precision, caught_at, fpr95, mean_ap

B = [[90, 80, 70, 60], [0, 95, 85, 80], [0, 0, 99, 90], [0, 0, 0, 92]]
SCORES = st.lists(st.integers(-4, 4), min_size=1, max_size=30)


def test_forgetting_as_the_published_code_counts_it():
    assert af(B) == pytest.approx((-30 - 15 - 9) / 3)


def test_forgetting_as_the_paper_prints_it_leaves_out_the_division_by_zero():
    first = ((80 - 90) + (70 - 90) + (60 - 90)) / 2
    second = ((85 - 95) + (80 - 95)) / 1
    assert af_paper(B) == pytest.approx((first + second) / 2)


def test_too_few_tasks_to_forget_is_not_a_number():
    assert math.isnan(af([[90]]))
    assert math.isnan(af_paper([[90, 80], [0, 95]]))


def test_a_matrix_that_is_not_square_is_refused():
    with pytest.raises(ValueError, match="square"):
        af([[1, 2, 3], [4, 5, 6]])


@given(SCORES, SCORES)
def test_fpr95_is_the_point_of_scikit_learns_curve(positive, negative):
    truth = [1] * len(positive) + [0] * len(negative)
    false, true, _ = roc_curve(truth, positive + negative, drop_intermediate=False)
    assert fpr95(positive, negative) == pytest.approx(false[np.argmax(true >= 0.95)])


def test_fpr95_depends_on_which_class_is_positive():
    unknown, known = [5, 4, 3, 0], [4, 2, 1, 1]
    assert fpr95(unknown, known) == 1.0
    assert fpr95([-k for k in known], [-u for u in unknown]) == 0.75


@given(SCORES, SCORES)
def test_average_precision_agrees_with_scikit_learn_ties_and_all(positive, negative):
    truth = [1] * len(positive) + [0] * len(negative)
    expected = average_precision_score(truth, positive + negative)
    assert average_precision(positive, negative) == pytest.approx(expected)


@given(SCORES, SCORES, st.sampled_from([0.05, 0.1, 0.5]))
def test_caught_is_the_best_point_of_scikit_learns_curve_within_the_false_share(unknown, known, share):
    truth = [1] * len(unknown) + [0] * len(known)
    false, true, _ = roc_curve(truth, unknown + known, drop_intermediate=False)
    assert caught_at(unknown, known, share) == pytest.approx(true[false <= share + 1e-9].max())


def test_one_known_in_twenty_may_be_turned_away():
    known = list(range(20))
    assert caught_at([18.5, 17.5], known) == 0.5
    assert caught_at([18.5, 17.5], known[1:]) == 0.0


@pytest.mark.parametrize("measure", [fpr95, average_precision, caught_at])
def test_nothing_to_compare_is_not_a_number(measure):
    assert math.isnan(measure([], [1.0]))
    assert math.isnan(measure([1.0], []))


def test_aa_m_counts_only_the_very_class():
    # Two of four and three of three: a fake called another source's fake is wrong.
    assert aa_m([[1, 1, 3, 0], [2, 2, 2]], [[1, 1, 1, 2], [2, 2, 2]]) == pytest.approx(75)
    assert aa_m([["a/fake"]], [["b/fake"]]) == 0
    assert math.isnan(aa_m([[]], [[]]))


def test_map_is_the_mean_over_tasks_whatever_their_sizes():
    assert mean_ap([[2.0, 3.0], [0.0] * 9], [[1.0, 0.0], [1.0]]) == pytest.approx(100 * (1 + 0.9) / 2)
    assert math.isnan(mean_ap([[1.0]], [[]]))

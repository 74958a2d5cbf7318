import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from updater.measures import (
    aa,
    af,
    af_paper,
    auroc,
    average_precision,
    balanced_weights,
    caught_at,
    conformal_bound,
    fpr95,
    may_exceed,
    weighted_quantile,
)

B = [[90, 80, 70, 60], [0, 95, 85, 80], [0, 0, 99, 90], [0, 0, 0, 92]]
SCORES = st.lists(st.integers(-4, 4), min_size=1, max_size=30)


def test_average_accuracy_is_the_mean_after_the_last_task() -> None:
    assert aa(B) == pytest.approx((60 + 80 + 90 + 92) / 4)


def test_forgetting_as_the_published_code_counts_it() -> None:
    assert af(B) == pytest.approx((-30 - 15 - 9) / 3)


def test_forgetting_as_the_paper_prints_it_leaves_out_the_division_by_zero() -> None:
    first = ((80 - 90) + (70 - 90) + (60 - 90)) / 2
    second = ((85 - 95) + (80 - 95)) / 1
    assert af_paper(B) == pytest.approx((first + second) / 2)


def test_too_few_tasks_to_forget_is_not_a_number() -> None:
    assert math.isnan(af([[90]]))
    assert math.isnan(af_paper([[90, 80], [0, 95]]))


def test_a_matrix_that_is_not_square_is_refused() -> None:
    with pytest.raises(ValueError, match="square"):
        aa([[1, 2, 3], [4, 5, 6]])


@given(SCORES, SCORES)
def test_auroc_agrees_with_scikit_learn_ties_and_all(positive: list[int], negative: list[int]) -> None:
    truth = [1] * len(positive) + [0] * len(negative)
    assert auroc(positive, negative) == pytest.approx(roc_auc_score(truth, positive + negative))


@given(SCORES, SCORES)
def test_fpr95_is_the_point_of_scikit_learns_curve(positive: list[int], negative: list[int]) -> None:
    truth = [1] * len(positive) + [0] * len(negative)
    false, true, _ = roc_curve(truth, positive + negative, drop_intermediate=False)
    assert fpr95(positive, negative) == pytest.approx(false[np.argmax(true >= 0.95)])


def test_fpr95_depends_on_which_class_is_positive() -> None:
    unknown, known = [5, 4, 3, 0], [4, 2, 1, 1]
    assert fpr95(unknown, known) == 1.0
    assert fpr95([-k for k in known], [-u for u in unknown]) == 0.75


@given(SCORES, SCORES)
def test_average_precision_agrees_with_scikit_learn_ties_and_all(
    positive: list[int], negative: list[int]
) -> None:
    truth = [1] * len(positive) + [0] * len(negative)
    expected = average_precision_score(truth, positive + negative)
    assert average_precision(positive, negative) == pytest.approx(expected)


@given(SCORES, SCORES, st.sampled_from([0.05, 0.1, 0.5]))
def test_caught_is_the_best_point_of_scikit_learns_curve_within_the_false_share(
    unknown: list[int], known: list[int], share: float
) -> None:
    truth = [1] * len(unknown) + [0] * len(known)
    false, true, _ = roc_curve(truth, unknown + known, drop_intermediate=False)
    assert caught_at(unknown, known, share) == pytest.approx(true[false <= share + 1e-9].max())


def test_one_known_in_twenty_may_be_turned_away() -> None:
    known = list(range(20))
    assert caught_at([18.5, 17.5], known) == 0.5
    assert caught_at([18.5, 17.5], known[1:]) == 0.0


@pytest.mark.parametrize("measure", [auroc, fpr95, average_precision, caught_at])
def test_nothing_to_compare_is_not_a_number(measure: object) -> None:
    assert math.isnan(measure([], [1.0]))  # type: ignore[operator]
    assert math.isnan(measure([1.0], []))  # type: ignore[operator]


@given(scores=st.lists(st.floats(-9, 9), min_size=1, max_size=120), share=st.sampled_from([0.02, 0.05, 0.2]))
def test_few_enough_exceed_a_conformal_bound_and_no_lower_score_would_do(
    scores: list[float], share: float
) -> None:
    bound, values = conformal_bound(scores, share), np.array(scores)
    assert (values > bound).sum() <= may_exceed(len(scores), share)
    lower = values[values < bound]
    assert not len(lower) or (values > lower.max()).sum() > may_exceed(len(scores), share)


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=40), st.floats(0.01, 1))
def test_equal_weights_give_the_ordinary_quantile(values: list[float], share: float) -> None:
    expected = np.quantile(values, share, method="inverted_cdf")
    assert weighted_quantile(values, np.ones(len(values)), share) == expected


def test_a_weight_counts_as_so_many_copies() -> None:
    assert weighted_quantile([3, 1, 2], [1, 7, 2], 0.7) == 1
    assert weighted_quantile([3, 1, 2], [1, 7, 2], 0.71) == 2


def test_balanced_weights_make_every_name_equal() -> None:
    weights = balanced_weights(["a", "a", "a", "b"])
    assert weights.sum() == pytest.approx(1)
    assert weights[:3].sum() == pytest.approx(weights[3])


def test_the_groups_of_a_name_share_its_weight() -> None:
    names, groups = ["a", "a", "a", "a", "b", "b"], ["x", "x", "x", "y", "x", "z"]
    assert balanced_weights(names, groups) == pytest.approx([1 / 12] * 3 + [1 / 4] + [1 / 4] * 2)

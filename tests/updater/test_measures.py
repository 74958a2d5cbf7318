"""Measures and whitenings against figures worked out by hand, and the laws that they keep."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from updater.measures import (
    aa,
    aa_m,
    af,
    af_paper,
    auroc,
    average_precision,
    balanced_weights,
    caught_at,
    conformal_bound,
    fpr95,
    may_exceed,
    mean_ap,
    weighted_quantile,
)
from updater.whitening import part_whitening, within_class_whitening

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


# Table 3 of CDDB (Li et al. 2023), each row: the method, its accuracy on the seven tasks of EASY after the
# last of them, the AA that is printed beside them, and whether that is their mean to the printed digits.
TABLE_3: tuple[tuple[str, tuple[float, ...], float, bool], ...] = (
    ("CNNDet-Zeroshot", (63.85, 68.75, 71.95, 60.93, 91.31, 60.93, 49.01), 66.68, True),
    ("CNNDet-Finetune", (57.25, 51.0, 57.63, 47.81, 80.41, 48.0, 78.77), 60.28, False),
    ("ConViT-Zeroshot", (89.55, 75.38, 94.66, 98.51, 80.22, 96.67, 49.25), 83.46, True),
    ("ConViT-Finetune", (51.45, 49.25, 52.86, 51.49, 77.63, 55.49, 86.28), 60.64, True),
    ("NSCIL-Sigmoid", (48.35, 50.25, 49.43, 56.58, 56.56, 70.73, 57.63), 55.65, True),
    ("LRCIL-Sigmoid", (83.0, 88.0, 82.82, 96.2, 79.02, 97.14, 62.82), 84.14, True),
    ("iCaRL-Sigmoid", (76.9, 80.0, 88.93, 99.41, 85.03, 99.45, 76.64), 87.05, False),
    ("LUCIR-Sigmoid", (90.6, 91.05, 90.46, 99.8, 91.04, 99.8, 75.38), 91.16, True),
    ("NSCIL", (46.8, 52.5, 47.9, 45.26, 35.21, 51.33, 58.85), 48.26, True),
    ("LRCIL", (83.5, 77.88, 90.84, 98.9, 84.75, 98.86, 65.92), 85.81, True),
    ("iCaRL", (77.5, 71.38, 91.22, 99.57, 95.66, 99.92, 78.28), 87.65, True),
    ("LUCIR-LinFC", (91.6, 89.12, 92.56, 99.76, 94.45, 99.8, 71.21), 91.21, True),
    ("DyTox", (98.3, 94.25, 98.85, 100.0, 95.66, 100.0, 85.94), 96.14, True),
    ("LRCIL-SumLog", (86.65, 85.63, 91.79, 99.22, 88.72, 99.57, 68.27), 88.76, False),
    ("iCaRL-SumLog", (74.4, 78.38, 88.36, 99.65, 92.24, 99.69, 79.84), 87.05, False),
    ("LUCIR-SumLog", (88.7, 88.62, 93.89, 99.37, 94.82, 99.8, 75.71), 91.56, True),
    ("DyTox-SumLog", (98.3, 95.0, 99.43, 100.0, 96.3, 100.0, 85.89), 96.42, True),
    ("LRCIL-SumLogit", (86.95, 88.12, 92.75, 99.45, 88.35, 99.45, 70.24), 89.33, True),
    ("iCaRL-SumLogit", (85.25, 86.12, 88.93, 99.65, 92.98, 99.8, 80.27), 90.43, True),
    ("LUCIR-SumLogit", (89.95, 89.62, 94.47, 99.65, 95.75, 99.8, 74.79), 92.0, True),
    ("DyTox-SumLogit", (98.3, 94.75, 99.05, 100.0, 96.86, 100.0, 86.82), 96.54, True),
    ("LRCIL-SumFeat", (84.85, 85.13, 92.56, 99.26, 87.15, 99.45, 69.9), 87.81, False),
    ("iCaRL-SumFeat", (77.9, 84.25, 90.84, 99.65, 82.72, 99.69, 79.11), 87.74, True),
    ("LUCIR-SumFeat", (90.05, 89.38, 94.85, 99.92, 95.01, 99.92, 73.53), 91.81, True),
    ("DyTox-SumFeat", (98.05, 93.63, 99.24, 100.0, 96.12, 100.0, 86.67), 96.24, True),
    ("LRCIL-Max", (87.8, 89.0, 92.18, 67.96, 87.15, 99.22, 69.85), 89.16, False),
    ("iCaRL-Max", (82.35, 87.0, 92.94, 99.76, 91.77, 99.73, 79.74), 89.92, False),
    ("LUCIR-Max", (89.85, 91.25, 94.08, 99.53, 92.51, 99.65, 72.61), 91.21, False),
    ("DyTox-Max", (98.8, 92.63, 99.05, 100.0, 96.12, 100.0, 86.23), 96.12, True),
    ("CNNDet-Binary", (98.65, 98.38, 96.37, 100.0, 95.19, 100.0, 79.59), 95.2, False),
    ("CNNDet-Multi", (95.7, 97.0, 95.8, 99.96, 96.3, 99.96, 75.28), 94.29, True),
    ("DyTox-Multi", (99.4, 96.37, 98.28, 100.0, 94.64, 100.0, 80.22), 95.53, False),
)


def last_column(accuracies: tuple[float, ...]) -> np.ndarray:
    matrix = np.full((len(accuracies), len(accuracies)), np.nan)
    matrix[:, -1] = accuracies
    return matrix


@pytest.mark.parametrize(("method", "accuracies", "printed", "agrees"), TABLE_3)
def test_aa_follows_from_the_task_columns_of_table_3_where_the_paper_agrees_with_itself(
    method, accuracies, printed, agrees
):
    # The ten rows that do not are in the table for whoever compares with it; no rounding explains them.
    assert (abs(aa(last_column(accuracies)) - printed) < 0.0051) is agrees


def test_22_rows_of_table_3_agree_and_10_do_not():
    assert [sum(row[3] is agrees for row in TABLE_3) for agrees in (True, False)] == [22, 10]


def test_aa_m_counts_only_the_very_class():
    # Two of four and three of three: a fake called another source's fake is wrong.
    assert aa_m([[1, 1, 3, 0], [2, 2, 2]], [[1, 1, 1, 2], [2, 2, 2]]) == pytest.approx(75)
    assert aa_m([["a/fake"]], [["b/fake"]]) == 0
    assert math.isnan(aa_m([[]], [[]]))


scores = st.lists(st.integers(-3, 3), min_size=1, max_size=30)


@given(scores, scores)
def test_average_precision_is_scikit_learns(positive, negative):
    truth = [1] * len(positive) + [0] * len(negative)
    assert average_precision(positive, negative) == pytest.approx(
        average_precision_score(truth, positive + negative)
    )


def test_map_is_the_mean_over_tasks_whatever_their_sizes():
    assert mean_ap([[2.0, 3.0], [0.0] * 9], [[1.0, 0.0], [1.0]]) == pytest.approx(100 * (1 + 0.9) / 2)
    assert math.isnan(mean_ap([[1.0]], [[]]))


FAMILIES = np.array(["real"] * 4000 + ["blended"] * 2000)


def rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    mixing = np.eye(6) + 0.3 * rng.normal(size=(6, 6))
    return (rng.normal(size=(6000, 6)) @ mixing + np.where(FAMILIES == "real", 0, 5)[:, None]).astype("f")


def within(values: np.ndarray) -> np.ndarray:
    """Return the covariance about each family's own mean."""
    centred = values.astype(np.float64)
    for family in set(FAMILIES):
        centred[family == FAMILIES] -= centred[family == FAMILIES].mean(0)
    return centred.T @ centred / len(centred)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_direction_of_variance_v_is_left_with_v_to_the_rest_of_the_share(share: float) -> None:
    before = within(rows())
    scale = np.sqrt(np.diag(before))
    mean, matrix = part_whitening(rows(), FAMILIES, share)
    after = within((rows() - mean) @ matrix)
    values, vectors = np.linalg.eigh(before / np.outer(scale, scale))
    # The shrinkage of the estimate moves the smallest variances a little.
    assert vectors.T @ after @ vectors == pytest.approx(np.diag(values ** (1 - share)), abs=0.06)


def test_all_the_way_is_the_whitening_but_for_a_rotation() -> None:
    _, part = part_whitening(rows(), FAMILIES, 1.0)
    _, whole = within_class_whitening(rows(), FAMILIES)
    assert part @ part.T == pytest.approx(whole @ whole.T, rel=1e-3, abs=1e-4)


def test_items_that_are_all_alike_whiten_to_nothing_that_is_infinite() -> None:
    rows = np.full((12, 5), 3.0, np.float32)
    mean, whitening = within_class_whitening(rows, np.array(["real"] * 12))
    assert np.isfinite(whitening).all()
    assert not ((rows - mean) @ whitening).any()

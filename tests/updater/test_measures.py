"""Measures and whitenings against figures worked out by hand, and the laws that they keep."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from updater import draws
from updater.draws import SeedPurpose
from updater.measures import (
    auroc,
    auroc_interval,
    balanced_weights,
    conformal_bound,
    may_exceed,
    part_whitening,
    roc_points,
    weighted_quantile,
    within_class_whitening,
)

SCORES = st.lists(st.integers(-4, 4), min_size=1, max_size=30)


@given(SCORES, SCORES)
def test_auroc_agrees_with_scikit_learn_ties_and_all(positive: list[int], negative: list[int]) -> None:
    truth = [1] * len(positive) + [0] * len(negative)
    assert auroc(positive, negative) == pytest.approx(roc_auc_score(truth, positive + negative))


@given(SCORES, SCORES)
def test_a_short_curve_has_the_area_of_its_scores(positive: list[int], negative: list[int]) -> None:
    points = roc_points(positive, negative, 200)
    assert np.trapezoid(points[:, 1], points[:, 0]) == pytest.approx(auroc(positive, negative))


def test_a_thinned_curve_keeps_its_ends_and_nearly_its_area() -> None:
    rng = np.random.default_rng(0)
    positive, negative = rng.normal(1, 1, 5000), rng.normal(0, 1, 700)
    points = roc_points(positive, negative, 50)
    assert len(points) <= 50
    assert points[0].tolist() == [0, 0]
    assert points[-1].tolist() == [1, 1]
    assert (np.diff(points, axis=0) >= 0).all()
    area = np.trapezoid(points[:, 1], points[:, 0])
    assert area == pytest.approx(auroc(positive, negative), abs=0.002)
    assert roc_points([], [1.0], 50).shape == (0, 2)


def test_nothing_to_compare_is_not_a_number() -> None:
    assert math.isnan(auroc([], [1.0]))
    assert math.isnan(auroc([1.0], []))


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


def test_no_two_streams_of_an_update_share_their_numbers():
    numbers = [one.value[0] for one in SeedPurpose if not one.value[1].startswith("benchmark")]
    assert len(numbers) == len(set(numbers))


def test_a_stream_draws_the_same_for_the_same_place_and_other_numbers_for_another():
    def first(stream, *place):
        return stream.generator(*place).random()

    assert first(SeedPurpose.BATCHES, 3, 0, 7) == np.random.default_rng([3, 3, 0, 7]).random()
    drawn = {
        first(stream, seed, number)
        for stream in (SeedPurpose.BATCHES, SeedPurpose.FORGERIES)
        for seed in (0, 1)
        for number in (0, 1)
    }
    assert len(drawn) == 8


def test_draws_by_running_sums_are_those_by_chances():
    chances = np.random.default_rng(0).random(1000) ** 3
    chances /= chances.sum()
    one, other = np.random.default_rng(5), np.random.default_rng(5)
    found = draws.draw(one, draws.cumulative(chances), 500)
    assert np.array_equal(found, other.choice(1000, 500, p=chances))
    assert one.random() == other.random()


def test_the_interval_of_an_auroc_holds_it_as_often_as_it_says():
    rng, held = np.random.default_rng(0), 0
    truth = 0.760  # of two normal distributions one standard deviation apart
    for _ in range(400):
        found = auroc(rng.normal(1, 1, 40), rng.normal(0, 1, 60))
        low, high = auroc_interval(found, 40, 60)
        held += low <= truth <= high
    assert 0.92 < held / 400 < 0.98

"""The figures of whole pictures: by hand, and against scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score

from updater.benchmark.measures import images

P = [[0.6, 0.3, 0.1], [0.4, 0.35, 0.25], [0.2, 0.7, 0.1], [0.45, 0.3, 0.25], [0.1, 0.2, 0.7]]
Y = [0, 0, 1, 1, 2]


@st.composite
def answers(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities with many ties, and classes of which some may be absent."""
    k, n = draw(st.integers(2, 5)), draw(st.integers(2, 25))
    weights = draw(st.lists(st.lists(st.integers(1, 4), min_size=k, max_size=k), min_size=n, max_size=n))
    classes = draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    p = np.array(weights, float)
    return p / p.sum(1, keepdims=True), np.array(classes)


def test_the_figures_of_five_pictures_worked_by_hand() -> None:
    assert images.acc(P, Y) == pytest.approx((1 + 0.5 + 1) / 3)
    # f is .4 .6 | .8 .55 .9: of the six pairs, .55 against .6 alone is wrong.
    assert images.auc(P, Y) == pytest.approx(5 / 6)
    # Class 0: .6 .4 over .2 .45 .1; class 1: .7 .3 over .3 .35 .2; class 2: .7 over all.
    assert images.map_ovr(P, Y) == pytest.approx((5 / 6 + 4.5 / 6 + 1) / 3)
    assert images.acc_2(P, Y) == pytest.approx((1 + 2 / 3) / 2)
    assert images.acc_2_sum(P, Y) == pytest.approx((0.5 + 1) / 2)


@settings(max_examples=30)  # scikit-learn takes its time
@given(answers())
def test_the_areas_are_those_of_scikit_learn(answer: tuple[np.ndarray, np.ndarray]) -> None:
    p, y = answer
    forged = y > 0
    if forged.all() or not forged.any():
        assert math.isnan(images.auc(p, y))
        return
    assert images.auc(p, y) == images.auc_2(p, y)
    assert images.auc(p, y) == pytest.approx(roc_auc_score(forged, 1 - p[:, 0]))
    there = [c for c in range(p.shape[1]) if (y == c).any()]
    assert images.map_ovr(p, y) == pytest.approx(np.mean([roc_auc_score(y == c, p[:, c]) for c in there]))
    assert images.map(p, y) == pytest.approx(
        np.mean([average_precision_score(y == c, p[:, c]) for c in there])
    )


@settings(max_examples=30)  # scikit-learn takes its time
@given(answers())
def test_the_accuracies_are_those_of_scikit_learn(answer: tuple[np.ndarray, np.ndarray]) -> None:
    p, y = answer
    said = np.where(np.isin(p.argmax(1), y), p.argmax(1), -1)
    recalls = [float((said[y == c] == c).mean()) for c in np.unique(y)]
    assert images.acc(p, y) == pytest.approx(np.mean(recalls))
    if len(np.unique(y > 0)) == 2:
        assert images.acc_2(p, y) == pytest.approx(balanced_accuracy_score(y > 0, p.argmax(1) > 0))
        assert images.acc_2_sum(p, y) == pytest.approx(balanced_accuracy_score(y > 0, 1 - p[:, 0] >= 0.5))


def test_a_class_that_no_item_is_of_is_left_out_and_named() -> None:
    wider = np.c_[np.array(P) * 0.99, np.full(5, 0.01)]
    assert images.absent(wider, Y) == (3,)
    assert images.acc(wider, Y) == pytest.approx(images.acc(P, Y))
    assert images.map_ovr(wider, Y) == pytest.approx(images.map_ovr(P, Y))
    assert images.map(wider, Y) == pytest.approx(images.map(P, Y))


def test_summing_forged_classes_tells_what_the_likeliest_class_does_not() -> None:
    p, y = [[0.4, 0.3, 0.3], [0.6, 0.2, 0.2]], [1, 0]
    assert images.acc_2(p, y) == 0.5
    assert images.acc_2_sum(p, y) == 1


def test_one_class_alone_or_nothing_at_all_is_no_number() -> None:
    for p, y in ([[0.6, 0.4]], [0]), (np.zeros((0, 2)), np.zeros(0, int)):
        assert math.isnan(images.auc(p, y))
        assert math.isnan(images.map_ovr(p, y))
        assert math.isnan(images.map(p, y))
    assert math.isnan(images.acc(np.zeros((0, 2)), np.zeros(0, int)))


@pytest.mark.parametrize(
    ("p", "y", "why"),
    [
        ([[math.nan, 0.5], [0.5, 0.5]], [0, 1], "not a finite"),
        ([[0.5, 0.5]], [0, 1], "do not fit"),
        ([[0.5, 0.5]], [2], "none of the 2"),
    ],
)
def test_what_is_no_probability_has_no_figure(p: list, y: list, why: str) -> None:
    for name in ("acc", "auc", "map_ovr", "map", "acc_2", "acc_2_sum", "auc_2"):
        with pytest.raises(ValueError, match=why):
            getattr(images, name)(p, y)


def test_all_figures_at_once_are_these_figures() -> None:
    found = images.figures(P, Y)
    assert set(found) == {"acc", "auc", "map_ovr", "map", "acc_2", "acc_2_sum", "auc_2"}
    assert all(value == getattr(images, name)(P, Y) for name, value in found.items())

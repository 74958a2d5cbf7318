"""Figures of pictures and of maps are those of scikit-learn, and of the papers' definitions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    jaccard_score,
    roc_auc_score,
)

from updater.benchmark.measures import images, maps

P, G = [[[0.05, 0.2, 0.5, 0.0]]], [[[0.0, 0.3, 0.45, 0.0]]]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A map beside a truth that has both forged cells and others, in tenths of a half."""
    n = draw(st.integers(2, 20))
    values = st.lists(st.integers(0, 20), min_size=n, max_size=n)
    p, g = np.array(draw(values)) / 20, np.array(draw(values)) / 20
    g[:2] = 0, 1
    return p[None], g[None]


def test_the_tables_map_of_four_cells() -> None:
    assert maps.agree(P, G, 0.1) == 1
    assert maps.close(P, G, 0.05) == 0.75
    assert maps.l1(P, G) == pytest.approx(0.05)


def test_agreement_is_one_less_what_the_paper_prints() -> None:
    assert maps.agree([[[0.0, 0.2]]], [[[0.2, 0.2]]], 0.1) == 0.5
    assert maps.agree([[[0.0, 0.0]]], [[[0.2, 0.2]]], 0.1) == 0


def test_a_difference_of_just_the_tolerance_is_close_whatever_rounding_makes_of_it() -> None:
    assert 0.65 - 0.6 > 0.05
    assert maps.close([[[0.65]]], [[[0.6]]], 0.05) == 1
    assert maps.close([[[0.6501]]], [[[0.6]]], 0.05) == 0


def test_a_mean_is_over_pictures_of_whatever_size() -> None:
    large, small = np.ones((4, 4)), np.zeros((1, 1))
    assert maps.l1([large, small], [np.zeros((4, 4)), small]) == 0.5


@settings(max_examples=30)  # scikit-learn takes its time
@given(pairs())
def test_overlap_and_areas_are_those_of_scikit_learn(pair: tuple[np.ndarray, np.ndarray]) -> None:
    p, g = pair
    forged, marked = (g >= 0.1).ravel(), (p >= 0.3).ravel()
    assert maps.iou([p], [g], 0.3) == pytest.approx(jaccard_score(forged, marked))
    assert maps.f1([p], [g], 0.3) == pytest.approx(f1_score(forged, marked))
    assert maps.pixel_auc([p], [g]) == pytest.approx(roc_auc_score(forged, p.ravel()))


def test_the_threshold_of_a_release_is_reached_by_what_equals_it() -> None:
    assert maps.iou([[[0.3, 0.0]]], [[[1.0, 0.0]]], 0.3) == 1
    assert maps.iou([[[0.3, 0.0]]], [[[1.0, 0.0]]]) == 0


def test_a_real_picture_is_marked_by_more_than_two_cells_in_a_hundred() -> None:
    two, three = np.zeros((10, 10)), np.zeros((10, 10))
    two[0, :2], three[0, :3] = 0.5, 0.5
    assert maps.reals_marked([two, three]) == 0.5
    assert maps.reals_marked([two, three], 0.6) == 0


def test_a_picture_without_a_forged_cell_is_in_no_figure_of_overlap() -> None:
    for figure in (maps.iou, maps.f1, maps.pixel_auc):
        assert math.isnan(figure([[[0.9]]], [[[0.05]]]))
        assert figure([[[0.9]], [[0.9, 0.0]]], [[[0.05]], [[1.0, 0.0]]]) == 1
    assert math.isnan(maps.pixel_auc([[[0.9]]], [[[1.0]]])), "no other cell to tell it from"
    assert math.isnan(maps.agree([], [], 0.1))


def test_the_empty_map_is_always_beside_with_all_its_figures() -> None:
    half = np.array([[1.0, 0.0]])
    found = maps.figures([half, half * 0], [half, half * 0], [True, False])
    zeros = found["zeros"]
    assert isinstance(zeros, dict)
    assert set(zeros) == set(found) - {"zeros"}
    assert set(zeros) == {
        *("agree_0.1", "agree_0.2", "close_0.01", "close_0.05", "l1", "iou", "f1", "pixel_auc"),
        *("agree_0.1_forged", "agree_0.2_forged", "close_0.01_forged", "close_0.05_forged", "l1_forged"),
        "reals_marked",
    }
    assert (found["agree_0.1"], found["iou"], found["pixel_auc"], found["reals_marked"]) == (1, 1, 1, 0)
    assert (zeros["agree_0.1"], zeros["agree_0.1_forged"]) == (0.75, 0.5)
    assert (zeros["l1"], zeros["l1_forged"], zeros["iou"], zeros["pixel_auc"]) == (0.25, 0.5, 0, 0.5)


def test_a_false_mark_on_a_real_picture_costs_agreement_but_no_overlap() -> None:
    half = np.array([[1.0, 0.0]])
    found = maps.figures([half, half], [half, half * 0], [True, False])
    assert (found["agree_0.1"], found["agree_0.1_forged"], found["iou"]) == (0.75, 1, 1)
    assert found["reals_marked"] == 1


@pytest.mark.parametrize(
    ("p", "g", "why"),
    [
        (np.zeros((2, 2)), np.zeros((2, 3)), "map 1 is"),
        (np.zeros(4), np.zeros(4), "must be"),
        (np.zeros((0, 2)), np.zeros((0, 2)), "must be"),
        (np.full((2, 2), math.nan), np.zeros((2, 2)), "not a finite"),
        (np.zeros((2, 2)), np.full((2, 2), math.inf), "not a finite"),
    ],
)
def test_a_map_that_does_not_fit_its_truth_is_named(p: np.ndarray, g: np.ndarray, why: str) -> None:
    fine = np.ones((2, 2))
    with pytest.raises(ValueError, match=why):
        maps.l1([fine, p], [fine, g])


PROBABILITY = [[0.6, 0.3, 0.1], [0.4, 0.35, 0.25], [0.2, 0.7, 0.1], [0.45, 0.3, 0.25], [0.1, 0.2, 0.7]]
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
    assert images.acc(PROBABILITY, Y) == pytest.approx((1 + 0.5 + 1) / 3)
    # f is .4 .6 | .8 .55 .9: of the six pairs, .55 against .6 alone is wrong.
    assert images.auc(PROBABILITY, Y) == pytest.approx(5 / 6)
    # Class 0: .6 .4 over .2 .45 .1; class 1: .7 .3 over .3 .35 .2; class 2: .7 over all.
    assert images.map_ovr(PROBABILITY, Y) == pytest.approx((5 / 6 + 4.5 / 6 + 1) / 3)
    assert images.acc_2(PROBABILITY, Y) == pytest.approx((1 + 2 / 3) / 2)
    assert images.acc_2_sum(PROBABILITY, Y) == pytest.approx((0.5 + 1) / 2)


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
    wider = np.c_[np.array(PROBABILITY) * 0.99, np.full(5, 0.01)]
    assert images.absent(wider, Y) == (3,)
    assert images.acc(wider, Y) == pytest.approx(images.acc(PROBABILITY, Y))
    assert images.map_ovr(wider, Y) == pytest.approx(images.map_ovr(PROBABILITY, Y))
    assert images.map(wider, Y) == pytest.approx(images.map(PROBABILITY, Y))


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
    found = images.figures(PROBABILITY, Y)
    assert set(found) == {"acc", "auc", "map_ovr", "map", "acc_2", "acc_2_sum", "auc_2"}
    assert all(value == getattr(images, name)(PROBABILITY, Y) for name, value in found.items())

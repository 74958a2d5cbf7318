"""The figures of maps: the tables' by hand, and against scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, jaccard_score, roc_auc_score

from updater.benchmark.measures import maps

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

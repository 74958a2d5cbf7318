"""What is counted of forged regions, on maps and truths worked by hand."""

import numpy as np
import pytest
from numpy.typing import NDArray
from verdicts import make_item, make_verdict

from deploy.demo.place import Answered, forged_cells, overlap, place_report, regions
from detector.looks.map_look import PictureMap, forgery_map
from detector.records import ForgeryMap, Verdict

SIDE = 64


def square(left: int, top: int, side: int) -> NDArray[np.uint8]:
    """A mask of a picture of 64 px, forged in one square."""
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[top : top + side, left : left + side] = 255
    return mask


def mapped(mask: NDArray[np.uint8]) -> ForgeryMap:
    """The map that marks just the cells of a mask which lies on cells."""
    return forgery_map(PictureMap(mask[::8, ::8].astype(np.float32) / 255, (0, 0, SIDE, SIDE)), 0.5, 0)


def said(number: int, label: str, found: ForgeryMap | None) -> Verdict:
    return make_verdict(make_item(number), label=label, map=found, width=SIDE, height=SIDE)


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        (square(0, 0, 32), 1.0),
        (square(0, 0, 16), 4 / 16),
        (square(16, 0, 32), 8 / 24),
        (square(32, 32, 16), 0.0),
        (np.zeros((SIDE, SIDE), np.uint8), 0.0),
    ],
)
def test_overlap_is_the_intersection_of_cells_over_their_union(
    marked: NDArray[np.uint8], expected: float
) -> None:
    assert overlap(mapped(marked), square(0, 0, 32)) == pytest.approx(expected)


def test_a_map_of_a_part_is_held_against_that_part_of_the_truth() -> None:
    found = forgery_map(PictureMap(np.ones((2, 2), np.float32), (32, 32, 16, 16)), 0.5, 0)
    assert forged_cells(found, square(40, 32, 8), (2, 2)).tolist() == [[False, True], [False, False]]


def test_each_region_is_counted_up_to_the_hurdle_that_it_fails() -> None:
    truth = square(0, 0, 32)
    pictures = [
        Answered(said(0, "fake", mapped(truth)), truth),
        Answered(said(1, "unknown", mapped(square(48, 48, 16))), truth),
        Answered(said(2, "unknown", mapped(np.zeros_like(truth))), truth),
        Answered(said(3, "unknown", None), truth),
        Answered(said(4, "real", None), truth),
    ]
    counted = regions(pictures)
    assert (counted.n, counted.not_real, counted.marked, counted.found) == (5, 4, 2, 1)


def test_what_marks_the_same_place_in_every_picture_finds_no_more_than_chance() -> None:
    always = mapped(square(0, 0, 32))
    corners = [square(0, 0, 32), square(32, 0, 32), square(0, 32, 32), square(32, 32, 32)]
    counted = regions([Answered(said(i, "fake", always), one) for i, one in enumerate(corners)])
    assert counted.found == counted.by_chance == 1


def test_small_regions_and_marked_reals_are_counted_apart() -> None:
    small, large = square(0, 0, 16), square(0, 0, 32)
    forged = [
        Answered(said(0, "fake", mapped(small)), small),
        Answered(said(1, "real", None), large),
    ]
    speck = np.zeros((SIDE, SIDE), np.uint8)
    speck[:8, :8] = 255  # one cell of 64 is less than two in a hundred
    reals = [said(2, "real", None), said(3, "unknown", mapped(small)), said(4, "unknown", mapped(speck))]
    report = place_report(forged, reals)
    assert (report.small.n, report.small.found) == (1, 1)
    assert (report.large.n, report.large.not_real) == (1, 0)
    assert (report.reals, report.reals_marked) == (3, 1)

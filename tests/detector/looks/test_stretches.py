"""From scores of frames to stretches: runs with tolerance, sharp ends first, doubles lowered and not lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.looks.stretches import MOST, SHORTEST, best_score, runs, soft_nms, stretches


def naive_runs(forged: list[bool], tolerance: int, shortest: int) -> list[tuple[int, int]]:
    found, start, gap = [], None, 0
    for place, one in enumerate([*forged, *[False] * (tolerance + 1)]):
        if one:
            start, gap = place if start is None else start, 0
        elif start is not None:
            gap += 1
            if gap > tolerance:
                end = place - gap + 1
                if end - start >= shortest:
                    found.append((start, end))
                start, gap = None, 0
    return found


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 7), st.integers(1, 6))
def test_runs_are_those_of_a_walk_over_the_frames(forged, tolerance, shortest):
    assert runs(np.array(forged, bool), tolerance, shortest) == naive_runs(forged, tolerance, shortest)


@given(st.lists(st.floats(0, 1, width=16), max_size=120))
def test_segments_lie_within_the_clip_none_too_short_and_the_best_comes_first(scores):
    found = stretches(scores)
    assert len(found) <= MOST
    assert (found[:, 0] >= 0).all()
    assert (found[:, 1] <= len(scores)).all()
    assert (found[:, 1] - found[:, 0] >= SHORTEST).all()
    assert ((found[:, 2] >= 0) & (found[:, 2] <= 1)).all()
    assert (np.diff(found[:, 2]) <= 1e-12).all()


def test_the_segment_with_the_sharpest_ends_wins():
    scores = np.full(60, 0.05)
    scores[16:44] = 0.2
    scores[20:40] = 0.95
    first, end, score = stretches(scores)[0]
    assert (first, end) == (20, 40)
    assert score == pytest.approx(0.95 * (1 - np.mean([0.2] * 8 + [0.05] * 2)))


def test_a_clip_that_is_forged_throughout_is_one_segment_and_a_quiet_one_has_none():
    assert stretches(np.full(30, 0.9)).tolist() == [[0, 30, pytest.approx(0.9)]]
    assert len(stretches(np.full(30, 0.1))) == 0
    assert best_score(stretches([])) == 0


def test_two_stretches_are_found_beside_each_other():
    scores = np.full(90, 0.02)
    scores[10:30] = scores[50:70] = 0.9
    assert {(first, end) for first, end, _ in stretches(scores)[:2]} == {(10, 30), (50, 70)}


def test_soft_nms_lowers_what_overlaps_and_keeps_all_even_the_last():
    segments = np.array([[0, 10, 0.9], [0, 10, 0.8], [20, 30, 0.5]])
    kept = soft_nms(segments, 0.5)
    assert kept.tolist() == [[0, 10, 0.9], [20, 30, 0.5], [0, 10, pytest.approx(0.8 * np.exp(-2))]]
    assert segments[1, 2] == 0.8, "what was given stays as it was"


def test_soft_nms_leaves_alone_what_overlaps_less_than_its_bound():
    segments = np.array([[0, 0.1, 0.9], [0.01, 0.1, 0.8]])
    overlap = 0.9
    # A bound of .65 for no length and .9 for the whole: of a tenth .675.
    assert soft_nms(segments, 0.75, (0.65, 0.9))[1, 2] == pytest.approx(0.8 * np.exp(-(overlap**2) / 0.75))
    assert soft_nms(segments, 0.75, (0.9, 1.0))[1, 2] == 0.8

"""The score from which on a stretch is told leaves all but few held-back real clips alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detector.features.cell_traces import CELL_WIDTH
from detector.model.scanner import Scanner
from updater.measures import may_exceed
from updater.scan.calibrate import (
    MAX_REALS_TOLD,
    fared,
    share_told,
    threshold_for,
    threshold_of,
    told,
)
from updater.scan.clips import ScannedClip, scanned


class Repeats(Scanner):
    """Says of each frame what its one feature is."""

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        return {"frame_score": features[:, 0]}


def clip(stretches: list[tuple[int, int, float]], true: list[tuple[int, int]]) -> ScannedClip:
    scores = np.zeros((60, 1), np.float32)
    for first, end, score in stretches:
        scores[first:end] = score
    return scanned(scores, true)


@given(st.lists(st.floats(0, 0.99), min_size=1, max_size=200))
def test_few_enough_reach_the_threshold_and_no_lower_one_would_do(best):
    threshold = threshold_for(best)
    assert (np.array(best) >= threshold).sum() <= may_exceed(len(best), MAX_REALS_TOLD)
    lower = np.nextafter(threshold, 0)
    assert threshold == 0.01 or (np.array(best) >= lower).sum() > may_exceed(len(best), MAX_REALS_TOLD)


@pytest.mark.parametrize(("clips", "told"), [(1, 0), (19, 0), (38, 0), (39, 1), (58, 1), (59, 2), (100, 4)])
def test_one_more_real_clip_is_told_with_a_chance_of_at_most_five_per_cent(clips, told):
    assert may_exceed(clips, MAX_REALS_TOLD) == told
    # Of n + 1 clips in any order, the last is told as often as any: where it is among the told + 1 highest.
    assert clips < 19 or (told + 1) / (clips + 1) <= MAX_REALS_TOLD + 1e-12
    assert (told + 2) / (clips + 1) > MAX_REALS_TOLD


def test_it_fares_as_its_clips_say():
    clips = [
        clip([], []),
        clip([(10, 30, 0.9)], []),
        clip([(10, 30, 0.9)], [(10, 30)]),
        clip([(0, 20, 0.9), (40, 60, 0.5)], [(0, 20), (40, 60)]),
        clip([(30, 40, 0.9)], [(0, 20)]),
    ]
    scanner = Repeats(1 + CELL_WIDTH)
    found = fared(scanner, clips, 0.7)
    assert (found.reals, found.forged, found.stretches) == (2, 3, 4)
    assert found.reals_told == share_told(told(scanner, clips[:2]), 0.7) == pytest.approx(0.5)
    assert found.found == pytest.approx(2 / 4)
    assert fared(scanner, clips, 0.2).found == pytest.approx(3 / 4)
    assert 0 < found.ap_50 < 1
    assert torch.is_grad_enabled()


def test_the_higher_of_two_thresholds_holds_on_both_kinds_of_real_clips():
    scanner = Repeats(1 + CELL_WIDTH)
    low = told(scanner, [clip([(10, 30, 0.1 + number / 100)], []) for number in range(20)])
    high = told(scanner, [clip([(10, 30, 0.5 + number / 100)], []) for number in range(20)])
    assert threshold_of(low, high) == threshold_of(high, low) == threshold_of(high, [])
    assert share_told(high, threshold_of(low, high)) == 0
    assert share_told(high, threshold_of(low, [])) == 1

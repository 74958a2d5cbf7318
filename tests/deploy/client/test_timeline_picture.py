"""A time line under frames of its clip: a line by score, red where forged, seconds on the axis."""

import numpy as np
import pytest

from deploy.client.timeline_picture import drawn, ticks
from detector.records import Scan, Segment

RED, PALE, BLUE = [255, 40, 40], [255, 205, 205], [30, 60, 160]


def frames(count: int = 4) -> list[np.ndarray]:
    return [np.full((60, 80, 3), 10 * (number + 1), np.uint8) for number in range(count)]


def a_scan(scores: list[float], step_s: float = 0.1) -> Scan:
    times = tuple(step_s * number for number in range(len(scores)))
    return Scan(frames=len(scores), step_s=step_s, threshold=0.5, times_s=times, scores=tuple(scores))


def where(picture: np.ndarray, colour: list[int]) -> np.ndarray:
    return np.argwhere((picture == colour).all(2))


def test_what_is_told_is_red_where_it_is_in_time_and_the_line_is_high_there() -> None:
    scores = [0.1] * 10 + [0.9] * 10 + [0.1] * 20
    segment = Segment(start_s=1, end_s=2, frames=(10, 19), score=0.8, box=(0, 0, 64, 64))
    shown = np.asarray(drawn(frames(), a_scan(scores), [segment]))
    assert shown[30, 40].tolist() == [10] * 3
    assert shown[30, 900].tolist() == [40] * 3
    pale = where(shown, PALE)[:, 1]
    quarter = (960 - 72) / 4
    assert pale.min() == pytest.approx(36 + quarter, abs=3)
    assert pale.max() == pytest.approx(36 + 2 * quarter, abs=3)
    line = where(shown, BLUE)
    inside = (line[:, 1] > 36 + 1.2 * quarter) & (line[:, 1] < 36 + 1.8 * quarter)
    assert line[inside, 0].max() < line[~inside & (line[:, 1] > 36 + 2.2 * quarter), 0].min()


def test_what_is_true_is_black_above_what_is_told() -> None:
    segment = Segment(start_s=1, end_s=2, frames=(10, 19), score=0.8, box=(0, 0, 64, 64))
    shown = np.asarray(drawn(frames(), a_scan([0.1] * 40), [segment], [(2.0, 3.0)]))
    bars = shown[170:190, 37:-37]
    told, true = (where(bars, colour) for colour in (RED, [20, 20, 20]))
    bar = told[told[:, 0] < told[:, 0].min() + 4]
    quarter = (960 - 72) / 4
    assert (bar[:, 1].min(), bar[:, 1].max()) == pytest.approx((quarter, 2 * quarter), abs=3)
    assert (true[:, 1].min(), true[:, 1].max()) == pytest.approx((2 * quarter, 3 * quarter), abs=3)
    assert true[:, 0].max() < bar[:, 0].min()


@pytest.mark.parametrize("scores", [[0.4], [0.0, 1.0]])
def test_a_clip_of_hardly_any_frames_and_without_a_stretch_is_drawn_too(scores: list[float]) -> None:
    shown = np.asarray(drawn(frames(1), a_scan(scores, step_s=0.04 if len(scores) > 1 else 0.0), []))
    assert len(where(shown, PALE)) == 0
    assert len(where(shown, BLUE)) > 0


@pytest.mark.parametrize("end_s", [1e-3, 0.04, 0.99, 1, 3.2, 10, 61, 3600])
def test_seconds_are_told_at_a_few_round_times(end_s: float) -> None:
    shown = ticks(end_s)
    assert 2 <= len(shown) <= 11
    assert shown[0] == 0
    assert shown[-1] <= end_s * 1.0001

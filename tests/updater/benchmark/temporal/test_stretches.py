"""The figures of segments: the tables' by hand, and against a slow implementation of its own."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from updater.benchmark.forgerynet.temporal import CROP_PX, frame_features
from updater.benchmark.temporal.method import TIOUS, frame_auc
from updater.benchmark.temporal.method import segment_figures as figures
from updater.distortions.clip import Clip, ClipError, to_rgb
from updater.distortions.clip_writing import to_h264
from updater.scan.clips import SeenFrames
from updater.scan.training import ap_at, tiou

TRUTH = [[[10, 30], [50, 80]], []]
PREDICTED = [[[12, 30, 0.9], [50, 70, 0.8], [0, 40, 0.3]], [[5, 15, 0.85]]]


def _tiou(a, b):
    common = len(set(range(int(a[0]), int(a[1]))) & set(range(int(b[0]), int(b[1]))))
    return common / (a[1] - a[0] + b[1] - b[0] - common)


def slow_ap(predicted, truth, threshold):
    """Average precision by the words of the rule: a list of claims, the best precision at each recall."""
    claims = sorted(
        ((score, video, (a, b)) for video, of in enumerate(predicted) for a, b, score in of),
        key=lambda claim: -claim[0],
    )
    total, taken, curve = sum(len(of) for of in truth), set(), []
    for rank, (_, video, said) in enumerate(claims, 1):
        free = [
            (_tiou(said, true), -number)
            for number, true in enumerate(truth[video])
            if (video, number) not in taken and _tiou(said, true) >= threshold - 1e-9
        ]
        if free:
            taken.add((video, -max(free)[1]))
        curve.append((len(taken) / total, len(taken) / rank))
    steps = [number / total for number in range(1, total + 1)]
    return sum(max([p for r, p in curve if r >= step - 1e-12], default=0) for step in steps) / total


def slow_ar(predicted, truth, kept):
    """Recall at each threshold of the so many best of each video that has a true segment, then the mean."""
    found = []
    for percent in range(50, 100, 5):
        hits = [
            any(_tiou(said, true) >= percent / 100 - 1e-9 for said in sorted(of, key=lambda s: -s[2])[:most])
            for of, is_true, most in zip(predicted, truth, kept, strict=True)
            for true in is_true
        ]
        found.append(sum(hits) / len(hits))
    return sum(found) / len(found)


@st.composite
def videos(draw):
    """A few videos with disjoint true segments and predictions near them, all scores different."""
    predicted, truth = [], []
    for _ in range(draw(st.integers(1, 4))):
        ends = sorted(draw(st.sets(st.integers(0, 40), max_size=6)))
        truth.append([list(pair) for pair in zip(ends[::2], ends[1::2], strict=False)])
        spans = draw(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 15)), max_size=6))
        near = [[max(0, a + da), b + db] for a, b in truth[-1] for da, db in ((0, 0), (1, 0), (-1, 2))]
        some = draw(st.lists(st.sampled_from(near), max_size=5)) if near else []
        predicted.append([*([a, a + n] for a, n in spans), *(pair for pair in some if pair[0] < pair[1])])
    scores = iter(draw(st.permutations(range(sum(map(len, predicted))))))
    return [[[a, b, next(scores)] for a, b in of] for of in predicted], truth


def test_the_tables_two_videos():
    assert ap_at(PREDICTED, TRUTH, 0.5) == pytest.approx(0.8333, abs=1e-4)
    assert ap_at(PREDICTED, TRUTH, 0.75) == pytest.approx(0.5)
    by_name = figures(PREDICTED, TRUTH)
    assert list(by_name) == ["ap_0.5", "ap_0.75", "ap_0.9", "ap", "ar_2", "ar_5", "ar_share_2", "ar_share_5"]
    assert by_name["ap_0.75"] == pytest.approx(0.5)
    assert by_name["ap"] == pytest.approx(0.58333, abs=1e-5)
    assert by_name["ar_2"] == pytest.approx(0.65)


@given(videos())
def test_ap_is_that_of_an_implementation_by_the_words_of_the_rule(drawn):
    predicted, truth = drawn
    if not any(truth):
        assert all(map(math.isnan, figures(predicted, truth).values()))
        return
    slow = [slow_ap(predicted, truth, percent / 100) for percent in range(50, 100, 5)]
    assert [ap_at(predicted, truth, t) for t in TIOUS] == pytest.approx(slow)
    assert figures(predicted, truth)["ap"] == pytest.approx(sum(slow) / 10)


@given(videos(), st.sampled_from([2, 5]))
def test_recalls_are_those_of_an_implementation_by_the_words_of_the_rule(drawn, most):
    predicted, truth = drawn
    assume(any(truth))
    n, v = sum(map(len, predicted)), sum(map(bool, truth))
    shares = [int(len(of) * most * v / n + 1e-9) if n else 0 for of in predicted]
    by_name = figures(predicted, truth)
    assert by_name[f"ar_{most}"] == pytest.approx(slow_ar(predicted, truth, [most] * len(truth)))
    assert by_name[f"ar_share_{most}"] == pytest.approx(slow_ar(predicted, truth, shares))


def test_a_true_segment_is_taken_once_and_a_double_is_false():
    truth, twice = [[[0, 10]]], [[[0, 10, 0.9], [0, 10, 0.8]]]
    assert ap_at(twice, truth, 0.9) == 1
    assert ap_at([[[0, 10, 0.9], [0, 10, 0.95]], []], [[[0, 10]], [[0, 10]]], 0.9) == 0.5


def test_a_prediction_whose_best_segment_is_taken_takes_the_next_one_that_reaches_the_threshold():
    # Two true segments of half a prediction each: it reaches .5 with both.
    truth, predicted = [[[0, 10], [10, 20]]], [[[0, 10, 0.9], [0, 20, 0.8]]]
    assert ap_at(predicted, truth, 0.5) == 1
    assert ap_at(predicted, truth, 0.55) == 0.5


def test_predictions_on_a_real_video_cost_precision():
    truth, predicted = [[[0, 10]], []], [[[0, 10, 0.5]], [[0, 10, 0.9]]]
    assert ap_at(predicted, truth, 0.9) == 0.5
    assert ap_at(predicted[:1], truth[:1], 0.9) == 1
    assert figures(predicted, truth)["ar_2"] == 1, "recall is of videos with a true segment"


@pytest.mark.parametrize("percent", range(50, 100, 5))
def test_an_overlap_of_just_the_threshold_reaches_it(percent):
    truth, just, below = [[[0, 100]]], [[[0, percent, 1]]], [[[0, percent - 1, 1]]]
    for threshold in (percent / 100, float(np.linspace(0.5, 0.95, 10)[(percent - 50) // 5])):
        assert ap_at(just, truth, threshold) == 1
        assert ap_at(below, truth, threshold) == 0


@pytest.mark.parametrize(
    ("percent", "length"), [(50, 20), (55, 100), (65, 20), (75, 100), (85, 20), (90, 100)]
)
def test_seconds_reach_a_threshold_as_their_frames_do(percent, length):
    frames, seconds = np.array([0, length]), np.array([0, length * percent // 100])
    assert tiou([seconds / 30], [frames / 30])[0, 0] < percent / 100, "rounding takes it below"
    assert ap_at([[[*(seconds / 30), 1.0]]], [[frames / 30]], percent / 100) == 1


def test_a_share_leaves_a_video_of_few_without_any():
    by_name = figures([[[0, 10, 0.9]], [[n, n + 5, 0.1] for n in range(9)]], [[[0, 10]], []])
    assert by_name["ar_2"] == 1
    assert by_name["ar_share_2"] == by_name["ar_share_5"] == 0


def test_nothing_predicted_finds_nothing_and_nothing_true_is_no_number():
    assert set(figures([[]], [[[0, 9]]]).values()) == {0}
    for nothing in (figures([[[0, 5, 1]]], [[]]), figures([], [])):
        assert all(map(math.isnan, nothing.values()))


def test_frames_are_told_apart_within_all_videos_together():
    scores, truth = [[0.1, 0.9, 0.8, 0.3], [0.2, 0.85]], [[[1, 3]], []]
    assert frame_auc(scores, truth) == pytest.approx(
        roc_auc_score([0, 1, 1, 0, 0, 0], [0.1, 0.9, 0.8, 0.3, 0.2, 0.85])
    )
    assert math.isnan(frame_auc([[0.1]], [[]]))
    with pytest.raises(ValueError, match="not within 4 frames"):
        frame_auc(scores, [[[1, 5]], []])


@pytest.mark.parametrize(
    ("predicted", "truth", "why"),
    [
        ([[[0, 9, math.nan]]], [[]], "finite"),
        ([[[9, 0, 0.5]]], [[]], "ends before"),
        ([[]], [[[9, 0]]], "ends before"),
        ([[]], [[[4, 4]]], "no length"),
        ([[[0, 9]]], [[]], r"\[n, 3\]"),
    ],
)
def test_what_is_no_segment_is_refused(predicted, truth, why):
    with pytest.raises(ValueError, match=why):
        figures(predicted, truth)


MAX_PIXELS = 10**8


@pytest.fixture(scope="module")
def features():
    return SeenFrames(CROP_PX)


@pytest.mark.slow
def test_a_clip_of_a_crops_size_has_the_features_of_its_frames(tmp_path, features):
    rng = np.random.default_rng(0)
    path = tmp_path / "clip.mp4"
    path.write_bytes(to_h264(rng.integers(0, 256, (12, CROP_PX, CROP_PX, 3), np.uint8), 20, "mp4"))
    wanted = features(np.stack([to_rgb(frame) for frame in Clip(path, MAX_PIXELS).frames()]))
    assert np.allclose(frame_features(path, features, 0, None, MAX_PIXELS), wanted, atol=1e-3)
    assert np.allclose(frame_features(path, features, 3, 9, MAX_PIXELS), wanted[3:9], atol=1e-3)
    with pytest.raises(ClipError, match="no frame from 12"):
        frame_features(path, features, 12, None, MAX_PIXELS)


def test_without_a_face_the_place_that_changes_most_is_looked_at(tmp_path, features):
    rng = np.random.default_rng(1)
    still = rng.integers(0, 256, (1, 2 * CROP_PX, 3 * CROP_PX, 3), np.uint8).repeat(24, 0)
    still[:, CROP_PX:, 2 * CROP_PX :] = 0
    for number in range(24):
        # From frame to frame smoother or rougher: nothing else in the picture changes.
        rough = rng.normal(128, 2 + 3 * number, (CROP_PX, CROP_PX, 1))
        still[number, CROP_PX:, 2 * CROP_PX :] = np.clip(rough, 0, 255).astype(np.uint8)
    path = tmp_path / "clip.mkv"
    path.write_bytes(to_h264(still, 10))
    corner = (slice(None), slice(CROP_PX, None), slice(2 * CROP_PX, None))
    shown = np.stack([to_rgb(frame) for frame in Clip(path, MAX_PIXELS).frames()])[corner]
    assert np.allclose(frame_features(path, features, 0, None, MAX_PIXELS), features(shown), atol=1e-3)

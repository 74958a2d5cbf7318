"""Where a video is scanned: on its largest face, mixed between frames, or where its features change most."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.release.contract import request_for
from detector.second_pass.scan_look import MOST, SHORTEST, best_score, runs, soft_nms, stretches
from detector.second_pass.scan_places import clips, corners_along, face_followed, frame_crops_of_videos
from detector.verdicts import VideoClip
from ingest.records import Decoded, Region
from ingest.sandbox.crops import grid


def test_a_face_moves_evenly_between_two_frames_where_it_was_found_and_rests_outside():
    boxes = face_followed({2: (10, 20, 40, 50), 6: (50, 20, 48, 54)}, range(9))
    assert boxes[:3] == [(10, 20, 40, 50)] * 3
    assert boxes[4] == (30, 20, 44, 52)
    assert boxes[6:] == [(50, 20, 48, 54)] * 3


def test_without_a_face_there_is_nothing_to_follow():
    with pytest.raises(ValueError, match="no face"):
        face_followed({}, range(5))
    assert corners_along({}, range(3), (640, 360), 128, (64, 8)) == [(64, 8)] * 3


def test_the_crop_lies_on_the_face_in_every_frame():
    corners = corners_along({0: (0, 0, 60, 60), 10: (400, 200, 60, 60)}, range(11), (640, 360), 128, (0, 0))
    assert corners[0] == (0, 0)
    for number, (left, top) in enumerate(corners):
        assert left <= 40 * number + 8
        assert left + 128 >= min(640, 40 * number + 52)
        assert top <= 20 * number + 8
        assert top + 128 >= min(360, 20 * number + 52)


def video(artifact, *, frames=3, face=False, size=(400, 300), length=90) -> Decoded:
    plan = artifact.manifest.contract.crop_plan
    each = len(grid(*size, plan.crop_px, plan.patches, plan.stride_px))
    regions = [
        Region("frame", (0, 0, *size), 30 * n, float(n), tuple(range(n * each, (n + 1) * each)))
        for n in range(frames)
    ]
    if face:
        regions.append(Region("face", (0, 0, 80, 80), 0, 0.0, (0,)))
    crops = np.zeros((frames * each, plan.crop_px, plan.crop_px, 3), np.uint8)
    numbers = tuple(30 * n for n in range(frames))
    return Decoded("video", "mp4", *size, frames, crops, tuple(regions), numbers, length)


def picture(artifact) -> Decoded:
    px = artifact.manifest.contract.crop_plan.crop_px
    return Decoded("image", "PNG", px, px, 1, np.zeros((1, px, px, 3), np.uint8), ())


@pytest.mark.slow
def test_a_video_is_scanned_where_its_features_change_most(scanned_artifact):
    manifest = scanned_artifact.manifest
    plan = manifest.contract.crop_plan
    items = [video(scanned_artifact, face=True), picture(scanned_artifact), video(scanned_artifact, length=7)]
    apart = frame_crops_of_videos(items, manifest)
    corners = grid(400, 300, plan.crop_px, plan.patches, plan.stride_px)
    assert [place for place, _ in apart] == [2] * (3 * len(corners))
    request = request_for(items, manifest.contract, apart)
    (pooling,) = (request[one.name] for one in manifest.contract.poolings)
    np.testing.assert_array_equal(pooling[-len(apart) :, -len(apart) :], np.eye(len(apart)))

    features = np.ones((len(pooling), 5), np.float32)
    restless = len(corners) - 2
    features[len(features) - len(apart) + len(corners) + restless] = 3
    found = clips(items, apart, features, manifest)
    assert found[1:] == [None, VideoClip(7, corners[restless])]
    assert found[0].length == 90


@pytest.mark.parametrize("features", [0, 5])
def test_where_no_place_can_be_told_it_is_the_middle(scanned_artifact, features):
    manifest = scanned_artifact.manifest
    one = video(scanned_artifact)
    # As after a change of size in mid-stream: a frame of more crops than the first one's size gives.
    changed = Decoded("video", "mp4", 8, 8, 3, one.crops, one.regions, one.frame_numbers, 90)
    item = changed if features else one
    apart = frame_crops_of_videos([item], manifest)
    rows = np.zeros((4 + len(apart), features), np.float32)
    px = manifest.contract.crop_plan.crop_px
    middle = (0, 0) if features else ((400 - px) // 2, (300 - px) // 2)
    assert clips([item], apart, rows, manifest) == [VideoClip(90, middle)]


def test_a_release_without_a_scanner_is_asked_nothing_more(localized_artifact):
    items = [video(localized_artifact)]
    assert frame_crops_of_videos(items, localized_artifact.manifest) == []
    assert clips(items, [], np.zeros((4, 5), np.float32), localized_artifact.manifest) == [None]


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

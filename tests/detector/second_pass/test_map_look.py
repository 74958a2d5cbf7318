"""A picture's map: crops cover it or its middle, on the grid of cells, and are joined where they lie."""

import base64
import hashlib
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from scipy import ndimage
from verdicts import look, make_evidence, make_item, make_verdict

from detector.records import Scan, Segment
from detector.release.contract import request_for
from detector.release.crop_graphs import CELL_PX
from detector.second_look import run_second_pass
from detector.second_pass.map_look import MAX_CROPS, PictureMap, assemble_map, cells_of, covering, forgery_map
from detector.second_pass.scan_look import MOST, SHORTEST, StretchLook, best_score, runs, soft_nms, stretches
from detector.second_pass.scan_places import clips, corners_along, face_followed, frame_crops_of_videos
from detector.serving.session import ReleaseSession
from detector.verdicts import JudgedItem, VideoClip
from ingest.records import Decoded, Region
from ingest.sandbox.crops import grid
from ingest.sandbox.extract import extract
from updater.distortions.clip_writing import to_h264

SIDES = st.integers(1, 3000)


@given(width=SIDES, height=SIDES)
def test_crops_lie_on_the_grid_within_the_part_and_are_at_most_36(width, height):
    corners, (left, top, part_width, part_height) = covering(width, height, 128)
    assert 1 <= len(corners) <= MAX_CROPS
    assert len(set(corners)) == len(corners)
    assert 0 <= left <= width - part_width
    assert 0 <= top <= height - part_height
    for x, y in corners:
        assert (x % CELL_PX, y % CELL_PX) == (0, 0)
        assert left <= x <= max(left, left + part_width - 128)
        assert top <= y <= max(top, top + part_height - 128)
    if width <= 768 and height <= 768:
        assert (part_width, part_height) == (width, height)


@given(width=st.integers(1, 900), height=st.integers(1, 900))
def test_every_cell_of_the_part_is_what_was_said_of_its_place(width, height):
    corners, part = covering(width, height, 128)
    rows, columns = -(-part[3] // CELL_PX), -(-part[2] // CELL_PX)
    y, x = np.arange(400)[:, None], np.arange(400)[None]
    whole = (y * 1000 + x).astype(np.float32)
    offsets = [((top - part[1]) // CELL_PX, (left - part[0]) // CELL_PX) for left, top in corners]
    cells = np.stack([whole[row : row + 16, column : column + 16] for row, column in offsets])
    found = assemble_map(cells, corners, part)
    assert found.part == part
    assert found.cells.shape == (rows, columns)
    # The last cell of a side that is no multiple of 8 px may be its neighbour's.
    assert np.array_equal(found.cells[: rows - 1, : columns - 1], whole[: rows - 1, : columns - 1])


def test_where_crops_overlap_a_cell_is_the_mean():
    cells = np.stack([np.zeros((16, 16), np.float32), np.ones((16, 16), np.float32)])
    found = assemble_map(cells, ((0, 0), (64, 0)), (0, 0, 192, 128)).cells
    assert found[:, :8].max() == 0
    assert np.all(found[:, 8:16] == 0.5)
    assert found[:, 16:].min() == 1


def test_a_large_picture_is_mapped_in_its_middle():
    corners, part = covering(4000, 3000, 128)
    assert (len(corners), part) == (36, (1616, 1112, 768, 768))
    assert covering(5000, 300, 128)[1] == (1728, 0, 1536, 300)


def test_a_mask_becomes_the_mean_of_each_cell():
    mask = np.zeros((20, 16), np.float32)
    mask[:8, :4] = 1
    mask[16:] = 1
    assert cells_of(mask, (3, 2)).tolist() == [[0.5, 0.0], [0.0, 0.0], [1.0, 1.0]]


def shown(png):
    return np.asarray(Image.open(BytesIO(base64.b64decode(png))))


CELL_GRIDS = arrays(np.float32, (6, 9), elements=st.floats(0, 1, width=32))


@given(cells=CELL_GRIDS, threshold=st.floats(0.05, 1))
def test_what_is_marked_can_be_read_from_the_png(cells, threshold):
    found = forgery_map(PictureMap(cells, (16, 8, 70, 45)), threshold, 0)
    marked = shown(found.png) >= threshold * 255
    np.testing.assert_allclose(shown(found.png), cells * 255, atol=0.501)
    assert found.share == pytest.approx(marked.mean())
    if not marked.any():
        assert found.box is None
        return
    assert found.box is not None
    left, top, width, height = found.box
    assert 16 <= left < left + width <= 16 + 70
    assert 8 <= top < top + height <= 8 + 45
    groups, _ = ndimage.label(marked)
    inside = groups[
        (top - 8) // 8 : -(-(top - 8 + height) // 8), (left - 16) // 8 : -(-(left - 16 + width) // 8)
    ]
    largest = np.bincount(groups[groups > 0]).max()
    assert np.bincount(inside[inside > 0]).max() == largest


def test_a_map_of_the_largest_part_takes_less_than_16_kb():
    cells = np.random.default_rng(0).random((96, 96), np.float32)
    assert len(forgery_map(PictureMap(cells, (0, 0, 768, 768)), 0.5, 0).model_dump_json()) < 16_000


# A video that is called real though a stretch of it is told is judged by that stretch.
SCAN = Scan(frames=30, step_s=1 / 12, threshold=0.3, times_s=(), scores=())


def clip():
    """30 frames of noise at 12 a second."""
    frames = np.random.default_rng(0).integers(0, 256, (30, 96, 160, 3), np.uint8)
    return to_h264(frames, 12, "mp4")


def segment(first, last, score=0.9):
    return Segment(
        start_s=first / 12, end_s=(last + 1) / 12, frames=(first, last), score=score, box=(0, 0, 64, 64)
    )


def seen(segments, label="real"):
    data = clip()
    item = make_item(digest=hashlib.sha256(data).hexdigest())
    said = {"label": label, "kind": "video", "format": "mp4", "width": 160, "height": 96}
    verdict = make_verdict(item, **said, segments=segments, scan=SCAN)
    return JudgedItem(verdict, make_evidence(), lambda: data, VideoClip(30, (0, 0)))


def with_gate(artifact, unknown_threshold, fake_threshold):
    gate = artifact.manifest.gate.model_copy(
        update={"unknown_threshold": unknown_threshold, "fake_threshold": fake_threshold}
    )
    return replace(artifact, manifest=artifact.manifest.model_copy(update={"gate": gate}))


def judged(artifact, one):
    (now,) = run_second_pass([one], [StretchLook(artifact, ReleaseSession(artifact, 1).score)], look)
    return now


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gate", "label"), [((99.0, 1.0), "unknown"), ((99.0, 0.0), "fake"), ((-99.0, 0.0), "unknown")]
)
def test_it_is_called_what_its_surest_stretch_is_and_never_real(scanned_artifact, gate, label):
    artifact = with_gate(scanned_artifact, *gate)
    before = seen((segment(9, 20), segment(25, 29, 0.4)))
    now = judged(artifact, before)
    verdict = now.verdict
    assert verdict.label == label
    assert verdict.family in artifact.manifest.classes[1:]
    assert (verdict.scan, verdict.segments) == (before.verdict.scan, before.verdict.segments)
    assert (verdict.id, verdict.item) == (before.verdict.id, before.verdict.item)
    assert verdict.timings.stretch_s > 0
    frames = [region.frame for region in verdict.regions if region.kind == "frame"]
    assert len(frames) == artifact.manifest.contract.crop_plan.frames
    assert 9 <= min(frames) < max(frames) <= 20


@pytest.mark.slow
def test_what_a_person_is_shown_is_the_stretch(scanned_artifact):
    look_at = StretchLook(scanned_artifact, ReleaseSession(scanned_artifact, 1).score)
    before = seen((segment(9, 20),))
    now = judged(scanned_artifact, before)
    expected = extract(clip(), look_at.plan(before), 1_000_000)
    np.testing.assert_array_equal(now.evidence.decoded.crops, expected.crops)
    for name, picture in expected.pictures.items():
        np.testing.assert_array_equal(now.evidence.decoded.pictures[name], picture)
    assert np.abs(now.evidence.features).sum() > 0
    assert np.abs(now.evidence.embedding).sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("segments", "label"),
    [((), "real"), (None, "real"), ((segment(9, 20),), "fake"), ((segment(9, 20),), "unknown")],
)
def test_without_a_stretch_and_where_it_is_not_called_real_all_stays(scanned_artifact, segments, label):
    before = seen(segments, label)
    assert judged(scanned_artifact, before) is before


@pytest.mark.slow
def test_where_the_model_cannot_answer_the_scanners_word_stands_and_it_is_not_called_real(scanned_artifact):
    def refuse(request):
        raise RuntimeError("what a runtime raises")

    before = seen((segment(9, 20),))
    (now,) = run_second_pass([before], [StretchLook(scanned_artifact, refuse)], look)
    assert (now.verdict.label, now.verdict.segments) == ("unknown", before.verdict.segments)
    assert now.verdict.unscanned == "RuntimeError: what a runtime raises"
    assert now.evidence is before.evidence


@pytest.mark.slow
def test_a_stretch_of_few_frames_is_judged_by_all_of_them(scanned_artifact):
    verdict = judged(scanned_artifact, seen((segment(12, 14),))).verdict
    assert [region.frame for region in verdict.regions if region.kind == "frame"] == [12, 13, 14]


# Where a video is scanned: on its largest face, mixed between frames, or where its features change most.
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


def video(artifact, *, frames=3, face=False, size=(400, 300), length=90):
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


def picture(artifact):
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


def naive_runs(forged, tolerance, shortest):
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

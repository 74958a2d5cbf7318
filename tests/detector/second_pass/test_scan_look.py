"""Every video is scanned along one place; what is told is when, and never in the way."""

import hashlib
import math
from concurrent.futures import Future
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from verdicts import look, make_evidence, make_item, make_region, make_verdict

from detector.release.crop_graphs import CELLS, FRAME_SCORE, MapContract, ScanContract
from detector.second_look import run_second_pass
from detector.second_pass.map_look import MapLook, PictureMap, forgery_map
from detector.second_pass.scan_look import ScanLook, scan_of, stretches
from detector.serving.torchserve import TorchServeUnavailableError
from detector.verdicts import JudgedItem, VideoClip
from ingest.records import Region
from ingest.sandbox.decode import DecodeError

CONTRACT = ScanContract(crop_px=64, threshold=0.4, reals_told=0.0, reals=20, export_difference=0.0)
WHITE = range(8, 17)


def clip(frames=24):
    """Black frames of 0.1 s, and a white square at (80, 40) in those of WHITE."""
    pictures = np.zeros((frames, 136, 200, 3), np.uint8)
    pictures[WHITE.start : WHITE.stop, 40:104, 80:144] = 255
    # Frames that are the same become one of twice the time.
    pictures[:, 0, 0, 0] = np.arange(frames)
    first, *others = [Image.fromarray(picture) for picture in pictures]
    buffer = BytesIO()
    first.save(buffer, "PNG", save_all=True, append_images=others, duration=100)
    return buffer.getvalue()


def white(request):
    """A scanner to which white is forged."""
    return {FRAME_SCORE: request["crops"].mean((1, 2, 3)).astype(np.float32) / 255}


def seen(label="fake", known=None, offset=0, **changes):
    data = clip()
    item = make_item(offset, digest=hashlib.sha256(data).hexdigest())
    usual = {"label": label, "kind": "video", "width": 200, "height": 136}
    verdict = make_verdict(item, **usual | changes)
    return JudgedItem(verdict, make_evidence(), lambda: data, known or VideoClip(24, (80, 40)))


def short(frames):
    pictures = [Image.new("RGB", (200, 136), (number, 0, 0)) for number in range(frames)]
    buffer = BytesIO()
    pictures[0].save(buffer, "PNG", save_all=True, append_images=pictures[1:], duration=100)
    item = make_item(digest=hashlib.sha256(buffer.getvalue()).hexdigest())
    verdict = make_verdict(item, label="real", kind="video", width=200, height=136)
    return JudgedItem(verdict, make_evidence(), buffer.getvalue, VideoClip(frames, (80, 40)))


def scanned(one, ask=white, contract=CONTRACT):
    (now,) = run_second_pass([one], [ScanLook(contract, ask)], look)
    return now.verdict


def test_it_says_when_and_where_a_video_is_forged_and_how_it_was_scanned():
    verdict = scanned(seen())
    assert (verdict.scan.frames, verdict.scan.threshold) == (24, 0.4)
    assert verdict.scan.step_s == pytest.approx(0.1)
    assert verdict.scan.scores == tuple(float(number in WHITE) for number in range(24))
    assert verdict.scan.times_s == pytest.approx(np.arange(24) / 10)
    assert verdict.segments is not None
    (segment,) = verdict.segments
    assert segment.frames == (8, 16)
    assert (segment.start_s, segment.end_s) == pytest.approx((0.8, 1.7))
    assert (segment.score, segment.box) == (1, (80, 40, 64, 64))
    assert verdict.timings.scan_s > 0


def test_a_video_is_scanned_in_no_more_frames_than_the_release_says():
    verdict = scanned(seen(), contract=CONTRACT.model_copy(update={"frames": 16}))
    assert verdict.scan.frames == 16
    assert verdict.scan.step_s == pytest.approx(0.15, abs=0.01)
    assert verdict.segments is not None
    (segment,) = verdict.segments
    assert np.abs(np.subtract(segment.frames, (8, 16))).max() <= 1
    assert (segment.start_s, segment.end_s) == pytest.approx((0.8, 1.7), abs=0.101)


@pytest.mark.parametrize(("side", "frames"), [(2000, 96), (4000, 37), (20_000, 8)])
def test_of_very_large_frames_fewer_are_decoded(side, frames):
    plan = ScanLook(CONTRACT, white).plan(seen(known=VideoClip(10_000, (0, 0)), width=side, height=side))
    assert len(plan.places) == len(plan.frames) == frames


def test_the_largest_face_is_followed_where_one_was_found():
    faces = [make_region("face", 0, (60, 20, 100, 100)), make_region("face", 0, (0, 0, 20, 20))]
    beyond = VideoClip(24, (0, 0))
    followed = scanned(seen(known=beyond, regions=tuple(faces)))
    assert followed.segments is not None
    assert [segment.box for segment in followed.segments] == [(72, 32, 64, 64)]
    elsewhere = scanned(seen(known=beyond, regions=(make_region("frame", 0, (0, 0, 200, 136)),)))
    assert elsewhere.segments == ()
    assert elsewhere.scan is not None


def test_a_picture_is_not_scanned():
    def refuse(*_):
        raise AssertionError("looked at again")

    picture = JudgedItem(seen().verdict, make_evidence(), lambda: b"")
    assert run_second_pass([picture], [ScanLook(CONTRACT, white)], refuse) == [picture]


def test_a_video_that_is_called_real_is_scanned_too_and_that_alone_changes_no_label():
    def refuse(request):
        raise AssertionError("mapped")

    maps = MapContract(crop_px=64, threshold=0.5, reals_marked=0, reals=1, export_difference=0)
    given = [seen(label) for label in ("real", "fake")]
    looks = [ScanLook(CONTRACT, white), MapLook(maps, refuse)]
    (real,) = (one.verdict for one in run_second_pass(given[:1], looks, look))
    fake = scanned(given[1])
    assert (real.label, real.map) == ("real", None)
    assert real.segments is not None
    assert (real.scan, real.segments, len(real.segments)) == (fake.scan, fake.segments, 1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda request: {FRAME_SCORE: np.zeros(3, np.float32)},
        lambda request: {},
        lambda request: {FRAME_SCORE: np.full(len(request["crops"]), np.nan, np.float32)},
    ],
)
def test_a_scanner_that_answers_nonsense_adds_nothing_and_the_verdict_says_so(ask):
    one = seen()
    now = scanned(one, ask)
    assert now.unscanned
    assert now.model_copy(update={"unscanned": None}) == one.verdict


def test_a_scan_that_fails_takes_no_map_and_no_other_item_with_it():
    def cells(request):
        return {CELLS: np.ones((len(request["crops"]), 8, 8), np.float32)}

    refused = iter([RuntimeError("what a runtime raises")])

    def ask(request):
        if error := next(refused, None):
            raise error
        return white(request)

    maps = MapContract(crop_px=64, threshold=0.5, reals_marked=0, reals=1, export_difference=0)
    looks = [MapLook(maps, cells), ScanLook(CONTRACT, ask)]
    first, second = (one.verdict for one in run_second_pass([seen(), seen(offset=1)], looks, look))
    assert (first.map is None, first.scan, first.segments) == (False, None, None)
    assert (second.map is None, second.scan is None) == (False, False)


def test_where_torchserve_is_away_for_a_scan_no_map_waits_for_it():
    asked = []

    def down(request):
        asked.append(1)
        raise TorchServeUnavailableError("no answer")

    maps = MapContract(crop_px=64, threshold=0.5, reals_marked=0, reals=1, export_difference=0)
    given = [seen(offset=number) for number in range(2)]
    now = [
        one.verdict for one in run_second_pass(given, [ScanLook(CONTRACT, down), MapLook(maps, down)], look)
    ]
    assert [verdict.scan or verdict.map for verdict in now] == [None, None]
    assert len(asked) == 1
    assert now[0].unscanned == "TorchServeUnavailableError: no answer"
    assert now[1].unscanned == "nobody was there to scan it"


def too_long(*_):
    future = Future()
    future.set_exception(DecodeError("timeout", "the decoder used up its processor time"))
    return future


@pytest.mark.parametrize(("label", "now"), [("real", "unknown"), ("fake", "fake"), ("unknown", "unknown")])
def test_a_video_that_could_not_be_scanned_is_not_called_real_and_says_why(label, now):
    (one,) = run_second_pass([seen(label)], [ScanLook(CONTRACT, white)], too_long)
    assert one.verdict.label == now
    assert one.verdict.unscanned == "DecodeError: the decoder used up its processor time"
    assert one.processor_s == math.inf  # no further look at it is begun


def test_a_video_whose_scan_was_left_out_while_records_waited_is_called_what_it_was():
    (one,) = run_second_pass([seen("real")], [ScanLook(CONTRACT, white)], too_long, seconds=0.0)
    assert (one.verdict.label, one.verdict.left_out, one.verdict.unscanned) == ("real", ("scan",), None)


@pytest.mark.parametrize(
    ("frame_s", "spent_s", "frames"), [(0.0001, 0.0, 24), (0.125, 0.0, 17), (0.125, 1.0, 11)]
)
def test_how_many_frames_are_scanned_follows_from_what_one_took_at_the_first_look(frame_s, spent_s, frames):
    one = replace(seen("real", VideoClip(24, (80, 40), frame_s)), processor_s=spent_s)
    verdict = scanned(one)
    assert (verdict.scan.frames, verdict.scan.left_out, verdict.unscanned) == (frames, 24 - frames, None)


@pytest.mark.parametrize(("frame_s", "spent_s"), [(0.4, 0.0), (0.125, 3.2), (0.001, 5.0), (0.0, math.inf)])
def test_a_video_whose_frames_take_too_long_is_not_decoded_again_and_not_called_real(frame_s, spent_s):
    def refuse(*_):
        raise AssertionError("decoded again")

    one = replace(seen("real", VideoClip(24, (80, 40), frame_s)), processor_s=spent_s)
    (now,) = run_second_pass([one], [ScanLook(CONTRACT, white)], refuse)
    assert now.verdict.label == "unknown"
    assert now.verdict.unscanned is not None
    assert "could be decoded" in now.verdict.unscanned


def test_a_video_of_which_hardly_a_frame_could_be_decoded_is_not_scanned():
    def damaged(media, plan, spent_s):
        return look(media, plan.model_copy(update={"places": plan.places[:7]}), spent_s)

    (now,) = run_second_pass([seen("real")], [ScanLook(CONTRACT, white)], damaged)
    assert now.verdict.label == "unknown"
    assert now.verdict.unscanned == "ValueError: 7 of 24 frames could be decoded"


def test_a_video_of_few_frames_is_scanned_in_all_of_them():
    (now,) = run_second_pass([short(3)], [ScanLook(CONTRACT, white)], look)
    assert now.verdict.scan is not None
    assert (now.verdict.label, now.verdict.scan.frames, now.verdict.scan.left_out) == ("real", 3, 0)


def regions(numbers, times):
    return tuple(
        Region("frame", (0, 0, 64, 64), int(number), float(time), (row,))
        for row, (number, time) in enumerate(zip(numbers, times, strict=True))
    )


@given(
    scores=arrays(np.float32, st.integers(1, 96), elements=st.floats(0, 1, width=32)),
    step=st.integers(1, 40),
    threshold=st.floats(0.05, 1),
)
def test_whoever_has_the_scan_finds_the_segments_in_it(scores, step, threshold):
    length = step * len(scores)
    numbers = np.arange(len(scores)) * step + step // 2
    scan, found = scan_of(scores, regions(numbers, numbers / 25), length, threshold)
    again = [stretch for stretch in stretches(scan.scores) if stretch[2] >= threshold]
    assert [one.score for one in found] == [score for _, _, score in again]
    for one, (first, end, _) in zip(found, again, strict=True):
        assert abs(one.frames[0] - first * step) <= 1
        assert abs(one.frames[1] + 1 - end * step) <= 1
        assert one.start_s == pytest.approx(one.frames[0] / 25, abs=2e-3)
        assert one.end_s == pytest.approx((one.frames[1] + 1) / 25, abs=2e-3)
    np.testing.assert_allclose(scan.scores, scores, atol=6e-4)


def test_ends_are_in_the_time_that_a_clip_of_a_changing_rate_shows():
    times = np.concatenate([np.arange(10) / 10, 1 + np.arange(10) / 2])
    scores = np.zeros(20, np.float32)
    scores[10:16] = 0.9
    _, (segment,) = scan_of(scores, regions(range(20), times), 20, 0.3)
    assert (segment.frames, segment.start_s, segment.end_s) == ((10, 15), 1, 4)


def test_a_stretch_does_not_go_on_where_a_damaged_video_was_not_reached():
    scores = np.full(10, 0.9, np.float32)
    numbers = 1 + 2 * np.arange(10)
    for beyond, last in ((0, 19), (200, 19)):
        _, (segment,) = scan_of(scores, regions(numbers, numbers / 10), 20 + beyond, 0.3)
        assert segment.frames == (0, last)
        assert (segment.start_s, segment.end_s) == pytest.approx((0, 2))


def test_one_frame_is_scanned_too_and_holds_no_stretch():
    scan, found = scan_of(np.ones(1, np.float32), regions([0], [0.0]), 1, 0.1)
    assert (scan.frames, scan.step_s, found) == (1, 0, ())


def test_a_map_and_a_scan_of_the_most_take_less_than_16_kb():
    rng = np.random.default_rng(0)
    scores = [*[0.051234] * 4, *[0.991234] * 5] * 11
    numbers = 1_000_000 + 1000 * np.arange(96)
    scan, found = scan_of(np.float32(scores[:96]), regions(numbers, numbers / 29.97), 2_000_000, 0.01)
    assert len(found) == 10
    largest = forgery_map(PictureMap(rng.random((96, 96), np.float32), (0, 0, 768, 768)), 0.5, 0)
    verdict = seen().verdict
    grown = verdict.model_copy(update={"scan": scan, "segments": found, "map": largest})
    assert len(grown.model_dump_json()) - len(verdict.model_dump_json()) <= 16_000

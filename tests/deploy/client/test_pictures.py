"""A verdict drawn: redder where forged, darker where nobody looked; a line by score, seconds on the axis."""

import itertools
import re
from typing import get_args

import numpy as np
import pytest
from verdicts import make_item, make_verdict

from deploy.client.pictures import draw_map, draw_scan, refusal, sentence, ticks
from detector.records import Coverage, Neighbour, Scan, Segment
from detector.second_pass.map_look import PictureMap, forgery_map
from ingest.envelope import EnvelopeReason
from ingest.records import Metadata, Provenance, ProvenanceState
from ingest.sandbox.decode import DecodeReason

GREY = np.full((40, 60, 3), 100, np.uint8)


def test_forged_cells_are_red_and_framed_and_what_was_not_looked_at_is_dark():
    cells = np.zeros((4, 6), np.float32)
    cells[1:3, 2:4] = 1
    found = forgery_map(PictureMap(cells, (64, 32, 48, 32)), 0.5, 0)
    shown = np.asarray(draw_map(GREY, 120, found))  # at half its native size
    assert shown.shape == (40, 60, 3)
    red, grey = shown[..., 0].astype(int), shown[..., 1].astype(int)
    np.testing.assert_array_equal(shown[:16], 50)
    np.testing.assert_array_equal(shown[18, 34], [100, 100, 100])
    middle = (slice(23, 25), slice(43, 45))
    assert red[middle].min() > 180
    assert grey[middle].max() < 70
    np.testing.assert_array_equal(shown[20, 40], [255, 40, 40])
    np.testing.assert_array_equal(shown[27, 47], [255, 40, 40])


def test_without_anything_marked_there_is_no_frame():
    found = forgery_map(PictureMap(np.zeros((5, 8), np.float32), (0, 0, 60, 40)), 0.5, 0)
    np.testing.assert_array_equal(np.asarray(draw_map(GREY, 60, found)), GREY)


def test_a_frame_that_is_smaller_than_a_pixel_of_what_is_shown_is_drawn_all_the_same():
    cells = np.zeros((96, 96), np.float32)
    cells[50, 50] = 1
    found = forgery_map(PictureMap(cells, (4000, 1000, 768, 768)), 0.5, 0)
    shown = np.asarray(draw_map(np.zeros((341, 1024, 3), np.uint8), 9000, found))
    assert (shown == [255, 40, 40]).all(2).any()


RED, PALE, BLUE = [255, 40, 40], [255, 205, 205], [30, 60, 160]


def frames(count=4):
    return [np.full((60, 80, 3), 10 * (number + 1), np.uint8) for number in range(count)]


def a_scan(scores, step_s=0.1):
    times = tuple(step_s * number for number in range(len(scores)))
    return Scan(frames=len(scores), step_s=step_s, threshold=0.5, times_s=times, scores=tuple(scores))


def where(picture, colour):
    return np.argwhere((picture == colour).all(2))


def test_what_is_told_is_red_where_it_is_in_time_and_the_line_is_high_there():
    scores = [0.1] * 10 + [0.9] * 10 + [0.1] * 20
    segment = Segment(start_s=1, end_s=2, frames=(10, 19), score=0.8, box=(0, 0, 64, 64))
    shown = np.asarray(draw_scan(frames(), a_scan(scores), [segment]))
    assert shown[30, 40].tolist() == [10] * 3
    assert shown[30, 900].tolist() == [40] * 3
    pale = where(shown, PALE)[:, 1]
    quarter = (960 - 72) / 4
    assert pale.min() == pytest.approx(36 + quarter, abs=3)
    assert pale.max() == pytest.approx(36 + 2 * quarter, abs=3)
    line = where(shown, BLUE)
    inside = (line[:, 1] > 36 + 1.2 * quarter) & (line[:, 1] < 36 + 1.8 * quarter)
    assert line[inside, 0].max() < line[~inside & (line[:, 1] > 36 + 2.2 * quarter), 0].min()


def test_what_is_true_is_black_above_what_is_told():
    segment = Segment(start_s=1, end_s=2, frames=(10, 19), score=0.8, box=(0, 0, 64, 64))
    shown = np.asarray(draw_scan(frames(), a_scan([0.1] * 40), [segment], [(2.0, 3.0)]))
    bars = shown[170:190, 37:-37]
    told, true = (where(bars, colour) for colour in (RED, [20, 20, 20]))
    bar = told[told[:, 0] < told[:, 0].min() + 4]
    quarter = (960 - 72) / 4
    assert (bar[:, 1].min(), bar[:, 1].max()) == pytest.approx((quarter, 2 * quarter), abs=3)
    assert (true[:, 1].min(), true[:, 1].max()) == pytest.approx((2 * quarter, 3 * quarter), abs=3)
    assert true[:, 0].max() < bar[:, 0].min()


@pytest.mark.parametrize("scores", [[0.4], [0.0, 1.0]])
def test_a_clip_of_hardly_any_frames_and_without_a_stretch_is_drawn_too(scores):
    shown = np.asarray(draw_scan(frames(1), a_scan(scores, step_s=0.04 if len(scores) > 1 else 0.0), []))
    assert len(where(shown, PALE)) == 0
    assert len(where(shown, BLUE)) > 0


@pytest.mark.parametrize("end_s", [1e-3, 0.04, 0.99, 1, 3.2, 10, 61, 3600])
def test_seconds_are_told_at_a_few_round_times(end_s):
    shown = ticks(end_s)
    assert 2 <= len(shown) <= 11
    assert shown[0] == 0
    assert shown[-1] <= end_s * 1.0001


SEGMENT = Segment(start_s=1, end_s=2.5, frames=(3, 8), score=0.9, box=(0, 0, 8, 8))
NEAR = tuple(Neighbour(exemplar="a", family=family, distance=1) for family in ("real", "real", "blended"))
REAL = {"label": "real", "unknown_score": 1}
MADE = Provenance(state="valid_untrusted", declares="generated", signer="Ada", generator="M")
UNSIGNED = Provenance(metadata=Metadata(declares="edited_with_ai", make="Canon", model="R5"))
DECLARED = {**REAL, "label": "fake", "family": "declared:generated", "pixel_label": "real"}
FORGED = {**REAL, "label": "fake", "family": "blended", "family_probability": 0.93, "fake_probability": 0.97}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (REAL, r"Probably real; fakeness 0\.50, threshold 0\.50\.$"),
        ({**REAL, "neighbours": NEAR}, "real: like genuine items that it knows; fakeness"),
        ({**REAL, "neighbours": NEAR[1:]}, "real; fakeness"),
        ({**REAL, "fake_probability": 0.49996}, r"fakeness 0\.49996, threshold 0\.50000\."),
        ({**REAL, "thresholds_of": "camera-7"}, r"threshold 0\.50, thresholds of camera-7\.$"),
        ({**REAL, "provenance": MADE}, r" in M \(signed by Ada, not on your trust list\)\.$"),
        ({**REAL, "provenance": UNSIGNED}, r"with an AI model\. Its EXIF names the camera Canon R5\.$"),
        ({**REAL, "provenance": Provenance(state="remote")}, "lies elsewhere and was not fetched"),
        (DECLARED, r"Forged, as its file states; its pixels look real; fakeness 0\.50"),
        ({**DECLARED, "pixel_label": None}, "its pixels look fake;"),
        ({**DECLARED, "pixel_label": "unknown"}, "its pixels look like nothing that it knows;"),
        ({**REAL, "label": "unknown", "pixel_label": "real"}, "look real, but its credential is invalid"),
        ({**REAL, "left_out": ("scan",)}, r"\. The scan was left out: records waited\.$"),
        (
            {**REAL, "coverage": Coverage(incomplete=True, others=2)},
            r"cut or damaged: .*Not looked at: 2 further",
        ),
        (
            {**REAL, "kind": "video", "coverage": Coverage(frames=9, judged=(0, 4))},
            "2 of 9 frames were looked",
        ),
        (FORGED, r"Probably forged, most like blended \(93%\); fakeness 0\.97, threshold 0\.50\.$"),
        ({**FORGED, "segments": (SEGMENT,)}, r"It stands out from 1\.0 to 2\.5 s\.$"),
        ({**FORGED, "unscanned": "no time"}, r"forged, .* It was not scanned: no time\.$"),
        ({}, r"Not known: .* no sign of forgery; strangeness 3\.00, threshold 2\.00; fakeness 0\.50"),
        ({"unscanned": "no time"}, r"Not known: unlike .* It was not scanned: no time\.$"),
        (
            {"unknown_score": 2, "unscanned": "no time"},
            "Not known: nothing speaks against the part that was seen",
        ),
        ({"unknown_score": 2, "segments": (SEGMENT,)}, "Not known: a stretch of it stands out; fakeness"),
        ({"unknown_score": 2, "fake_probability": 0.9}, "fakeness 0.90, threshold 0.50, but too strange"),
    ],
)
def test_a_verdict_s_sentence_says_what_its_numbers_say(changes, expected):
    assert re.search(expected, sentence(make_verdict(make_item(0), **changes)))


@pytest.mark.parametrize(
    ("declares", "generator", "expected"),
    [
        ("generated", "Sora", "says that it was made by a generative model in Sora"),
        ("generated", None, "says that it was made by a generative model"),
        ("edited_with_ai", "Adobe Photoshop", "says that it was edited with an AI model in Adobe Photoshop"),
        ("composite", None, "says that it was composed of several pictures"),
        ("captured", "Pixel Camera", "says that it was captured with a camera by Pixel Camera"),
        ("other", None, "says that it was made by other means"),
        (None, "Adobe Photoshop", "does not say how it was made"),
    ],
)
def test_every_claim_is_a_sentence_in_each_state(declares, generator, expected):
    of = {"valid_trusted": "on your trust list", "valid_untrusted": "not on your trust list"}
    of |= {"invalid": "but changed since, or the certificate does not count"}
    for state, name in itertools.product(get_args(ProvenanceState), (None, "Ada")):
        signed = Provenance(state=state, declares=declares, generator=generator, signer=name).claims
        by = f"signed by {name or 'an unnamed signer'}, {of.get(state)}"
        assert signed == ([f"The file {expected} ({by})"] if state in of else [])
    unsigned = Provenance(metadata=Metadata(declares=declares, generator=generator)).claims
    assert unsigned == ([f"The file says, unsigned, {expected[5:]}"] if declares else [])


@pytest.mark.parametrize("reason", [*get_args(DecodeReason), *get_args(EnvelopeReason)])
def test_a_refusal_keeps_why_and_says_what_to_do_about_a_file(reason):
    helped = reason in {*get_args(DecodeReason), "no_media"}
    expected = r"\. .*\(so it is\)$" if helped else ": so it is$"
    assert re.search(expected, refusal(reason, "so it is"))

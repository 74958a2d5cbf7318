"""The sheet of time lines that the demonstration leaves: which clips, and what is told of each."""

import numpy as np
import pytest
from verdicts import make_item, make_verdict

from deploy.demo.timelines import ShownClip, caption, sheet, to_look_at
from deploy.demo.when import AnsweredClip
from detector.records import Scan, Segment
from updater.distortions.clip_writing import to_h264
from updater.scan.stretches import Stretch

FRAMES = 25
GREY = to_h264(np.full((FRAMES, 64, 64, 3), 128, np.uint8), 20, "mp4")
SCAN = Scan(
    frames=FRAMES,
    step_s=0.04,
    threshold=0.5,
    times_s=tuple(number / 25 for number in range(FRAMES)),
    scores=(0.1,) * FRAMES,
)


def shown(number: int, family: str, label: str, *told: tuple[int, int]) -> ShownClip:
    """A clip of one second whose frames 5 to 14 are forged, unless it is real."""
    segments = tuple(
        Segment(start_s=first / 25, end_s=end / 25, frames=(first, end - 1), score=0.9, box=(0, 0, 64, 64))
        for first, end in told
    )
    verdict = make_verdict(
        make_item(number), kind="video", label=label, family="blended", scan=SCAN, segments=segments
    )
    truth = () if family == "real" else (Stretch(5, 15),)
    return ShownClip(GREY, AnsweredClip(verdict, family, truth))


def test_of_each_family_the_first_clip_with_a_told_stretch_is_shown_or_else_the_first() -> None:
    sent = [
        shown(0, "real", "real"),
        shown(1, "real", "unknown"),
        shown(2, "blended", "real"),
        shown(3, "blended", "real", (5, 15)),
    ]
    assert [one.answered.verdict.id for one in to_look_at(sent)] == ["media-0-0", "media-0-3"]


def test_a_caption_says_what_was_forged_and_how_much_of_it_was_found() -> None:
    told = caption(shown(0, "upsampled", "fake", (5, 15), (18, 24)).answered)
    assert told == "upsampled: called fake (blended); stretches: 1 forged, 2 told, 1 found"
    assert caption(shown(0, "real", "real").answered) == "a real clip: called real, nothing told"
    assert (
        caption(shown(0, "real", "unknown", (0, 9)).answered)
        == "a real clip: called unknown, 1 told as forged"
    )
    unscanned = AnsweredClip(make_verdict(make_item(), kind="video"), "blended", ())
    assert caption(unscanned) == "blended: called unknown, not scanned"


def test_each_clip_has_its_frames_above_what_is_true_and_what_is_told() -> None:
    drawn = np.asarray(sheet([shown(0, "blended", "real", (15, 20))]))
    black, red = ((drawn == colour).all(2) for colour in ([20, 20, 20], [255, 40, 40]))
    grey = np.abs(drawn.astype(int) - 128).max(2) < 4
    # One clip of one second is 888 px wide behind a margin of 36 px and a gap of 8 px.
    true = np.argwhere(black[:, 60:-40] & (black[:, 60:-40].sum(1) > 300)[:, None])
    assert true[:, 1].min() + 60 == pytest.approx(8 + 36 + 888 * 0.2, abs=1)
    assert true[:, 1].max() + 60 == pytest.approx(8 + 36 + 888 * 0.6, abs=1)
    assert np.flatnonzero(red.sum(1) > 150).min() > true[:, 0].max()
    assert true[:, 0].min() > np.flatnonzero(grey.sum(1) > 800).max()


def test_a_clip_that_was_not_scanned_is_shown_by_its_frames_alone() -> None:
    bare = AnsweredClip(make_verdict(make_item(), kind="video"), "blended", (Stretch(5, 15),))
    assert sheet([ShownClip(GREY, bare)]).height < sheet([shown(0, "blended", "real")]).height

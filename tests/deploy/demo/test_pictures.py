"""The sheets that the demonstration leaves: which pictures and clips, and what is told of each."""

import io

import numpy as np
import pytest
from PIL import Image
from verdicts import make_item, make_verdict

from deploy.demo.located import Answered, AnsweredClip
from deploy.demo.pictures import (
    ShownClip,
    ShownPicture,
    map_caption,
    map_sheet,
    timeline_caption,
    timeline_sheet,
    to_look_at,
)
from detector.records import Scan, Segment
from detector.second_pass.map_look import PictureMap, forgery_map
from updater.distortions.clip_writing import to_h264
from updater.scan.clips import Stretch

SIDE = 64
GREY = np.full((SIDE, SIDE, 3), 100, np.uint8)
MASK = np.zeros((SIDE, SIDE), np.uint8)
MASK[:32, :32] = 255


def shown(number: int, family: str, label: str, *, with_map: bool) -> ShownPicture:
    file = io.BytesIO()
    Image.fromarray(GREY).save(file, "PNG")
    cells = MASK[::8, ::8].astype(np.float32) / 255
    found = forgery_map(PictureMap(cells, (0, 0, SIDE, SIDE)), 0.5, 0) if with_map else None
    verdict = make_verdict(
        make_item(number), label=label, family="blended", map=found, width=SIDE, height=SIDE
    )
    return ShownPicture(file.getvalue(), family, Answered(verdict, MASK))


def test_of_each_family_the_first_with_a_map_is_shown_or_else_the_first() -> None:
    sent = [
        shown(0, "blended", "real", with_map=False),
        shown(1, "smoothed", "real", with_map=False),
        shown(2, "blended", "fake", with_map=True),
        shown(3, "smoothed", "real", with_map=False),
        shown(4, "blended", "fake", with_map=True),
    ]
    chosen = to_look_at(sent)
    assert [one.answered.verdict.id for one in chosen] == ["media-0-2", "media-0-1"]


def test_a_caption_says_what_was_forged_and_how_much_of_it_was_found() -> None:
    told = map_caption(shown(0, "smoothed", "fake", with_map=True))
    assert told == "smoothed, 25% of the area: called fake (blended), 25% marked, IoU with the truth 1.00"
    assert map_caption(shown(0, "smoothed", "real", with_map=False)).endswith("called real, so not mapped")
    assert map_caption(shown(0, "smoothed", "unknown", with_map=False)).endswith("called unknown, no map")


def test_a_row_has_the_file_and_its_truth_and_its_map_side_by_side() -> None:
    drawn = np.asarray(map_sheet([shown(0, "smoothed", "fake", with_map=True)])).astype(int)
    row = drawn[200]  # in the upper left quarter of each tile, where it is forged
    sent, true, said = row[60], row[60 + 264], row[60 + 2 * 264]
    assert sent.tolist() == true.tolist() == [100, 100, 100]
    assert said[0] > 150 > said[1]
    outside = drawn[300]
    assert outside[60 + 264].tolist() == [25, 25, 25]
    assert outside[60 + 2 * 264].tolist() == [100, 100, 100]


FRAMES = 25
GREY_CLIP = to_h264(np.full((FRAMES, 64, 64, 3), 128, np.uint8), 20, "mp4")
SCAN = Scan(
    frames=FRAMES,
    step_s=0.04,
    threshold=0.5,
    times_s=tuple(number / 25 for number in range(FRAMES)),
    scores=(0.1,) * FRAMES,
)


def shown_clip(number: int, family: str, label: str, *told: tuple[int, int]) -> ShownClip:
    """A clip of one second whose frames 5 to 14 are forged, unless it is real."""
    segments = tuple(
        Segment(start_s=first / 25, end_s=end / 25, frames=(first, end - 1), score=0.9, box=(0, 0, 64, 64))
        for first, end in told
    )
    verdict = make_verdict(
        make_item(number), kind="video", label=label, family="blended", scan=SCAN, segments=segments
    )
    truth = () if family == "real" else (Stretch(5, 15),)
    return ShownClip(GREY_CLIP, AnsweredClip(verdict, family, truth))


def test_of_each_family_the_first_clip_with_a_told_stretch_is_shown_or_else_the_first() -> None:
    sent = [
        shown_clip(0, "real", "real"),
        shown_clip(1, "real", "unknown"),
        shown_clip(2, "blended", "real"),
        shown_clip(3, "blended", "real", (5, 15)),
    ]
    assert [one.answered.verdict.id for one in to_look_at(sent)] == ["media-0-0", "media-0-3"]


def test_a_clips_caption_says_what_was_forged_and_how_much_of_it_was_found() -> None:
    told = timeline_caption(shown_clip(0, "upsampled", "fake", (5, 15), (18, 24)).answered)
    assert told == "upsampled: called fake (blended); stretches: 1 forged, 2 told, 1 found"
    assert (
        timeline_caption(shown_clip(0, "real", "real").answered) == "a real clip: called real, nothing told"
    )
    assert (
        timeline_caption(shown_clip(0, "real", "unknown", (0, 9)).answered)
        == "a real clip: called unknown, 1 told as forged"
    )
    unscanned = AnsweredClip(make_verdict(make_item(), kind="video"), "blended", ())
    assert timeline_caption(unscanned) == "blended: called unknown, not scanned"


def test_each_clip_has_its_frames_above_what_is_true_and_what_is_told() -> None:
    drawn = np.asarray(timeline_sheet([shown_clip(0, "blended", "real", (15, 20))]))
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
    assert (
        timeline_sheet([ShownClip(GREY_CLIP, bare)]).height
        < timeline_sheet([shown_clip(0, "blended", "real")]).height
    )

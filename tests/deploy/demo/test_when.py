"""What is counted of forged stretches, on told ones and truths worked by hand."""

import numpy as np
import pytest
from verdicts import make_item, make_verdict

from deploy.demo.when import AnsweredClip, aims, segments_of, told, when_report
from detector.records import Segment
from updater.scan.calibrate import found
from updater.scan.stretches import Stretch

TRUTH = (Stretch(10, 20), Stretch(40, 70))


def clip(
    number: int,
    truth: tuple[Stretch, ...] = (),
    said: tuple[tuple[int, int], ...] = (),
    family: str = "blended",
    label: str = "real",
) -> AnsweredClip:
    """A clip of which stretches are told, half open in frames."""
    segments = tuple(
        Segment(start_s=first / 25, end_s=end / 25, frames=(first, end - 1), score=0.9, box=(0, 0, 128, 128))
        for first, end in said
    )
    verdict = make_verdict(make_item(number), kind="video", label=label, segments=segments)
    return AnsweredClip(verdict, family, truth)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([(10, 20), (40, 70)], 2),
        ([(10, 30)], 1),  # 10 of 20 frames
        ([(10, 31)], 0),
        ([(40, 55)], 1),
        ([(40, 54)], 0),
        ([(10, 70)], 1),  # over both, of which it is half the longer one
        ([(42, 70), (40, 68)], 1),
        ([], 0),
    ],
)
def test_a_stretch_is_found_where_half_of_what_both_cover_is_covered_by_both(
    said: list[tuple[int, int]], expected: int
) -> None:
    assert found(np.array(said, np.float64).reshape(-1, 2), TRUTH).sum() == expected


def test_the_last_frame_of_a_told_stretch_belongs_to_it() -> None:
    assert segments_of(clip(0, said=((3, 9), (20, 21))).verdict).tolist() == [[3, 9], [20, 21]]
    assert segments_of(make_verdict(make_item())).shape == (0, 2)


def test_clips_of_each_kind_are_counted_apart() -> None:
    report = when_report(
        [
            clip(0, family="real"),
            clip(1, family="real", label="unknown"),
            clip(2, family="real", said=((5, 9),)),
            clip(3, TRUTH, ((10, 20), (80, 90)), label="fake"),
            clip(4, TRUTH, label="unknown"),
            clip(5, (Stretch(0, 9),), ((0, 9),), family="inpainted"),
        ]
    )
    reals, blended, forged = report.reals, report.families["blended"], report.forged
    assert (reals.clips, reals.not_real, reals.unknown, reals.with_segment) == (3, 1, 1, 1)
    assert (reals.stretches, reals.found, reals.by_chance) == (0, 0, 0)
    assert (blended.clips, blended.not_real, blended.unknown) == (2, 2, 1)
    assert (blended.with_segment, blended.segments, blended.stretches, blended.found) == (1, 2, 4, 1)
    assert report.families["inpainted"].found == 1
    assert (forged.clips, forged.stretches, forged.found) == (3, 5, 2)


def test_what_tells_the_same_time_in_every_clip_finds_no_more_than_chance() -> None:
    always = ((0, 30),)
    truths = [(Stretch(0, 30),), (Stretch(30, 60),), (Stretch(60, 90),)]
    counted = told([clip(number, truth, always) for number, truth in enumerate(truths)])
    assert counted.found == counted.by_chance == 1


def test_chance_is_what_the_other_clips_stretches_would_have_found() -> None:
    own = [
        clip(number, (Stretch(9 * number, 9 * number + 9),), ((9 * number, 9 * number + 9),))
        for number in range(4)
    ]
    assert (told(own).found, told(own).by_chance) == (4, 0)
    assert told(own[:1]).by_chance == 0


@pytest.mark.parametrize(("reals_told", "met", "reached"), [(1, 2, [True, True]), (2, 1, [False, False])])
def test_what_is_strived_for_is_one_real_clip_of_twenty_and_half_of_the_stretches(
    reals_told: int, met: int, reached: list[bool]
) -> None:
    reals = [clip(number, said=((5, 9),) * (number < reals_told), family="real") for number in range(20)]
    forged = [clip(20 + number, TRUTH, ((10, 20),) * (number < met)) for number in range(2)]
    assert list(aims(when_report(reals + forged)).values()) == reached

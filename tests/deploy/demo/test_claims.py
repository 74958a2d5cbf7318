from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from verdicts import make_item, make_verdict

from deploy.demo.claims import (
    FamilyShares,
    LabelShares,
    Sent,
    average_accuracy,
    average_forgetting,
    delivery,
    family_shares,
    real_shares,
    report,
    shares,
)
from deploy.demo.located import (
    Answered,
    AnsweredClip,
    aims,
    count_located,
    forged_cells,
    overlap,
    place_report,
    regions,
    segments_of,
    when_report,
)
from deploy.demo.plan import DEFAULT_UNSEEN
from deploy.demo.tables import show
from detector.records import Segment
from detector.second_pass.map_look import PictureMap, forgery_map
from updater.scan.clips import Stretch
from updater.scan.training import hits

OLD, NEW = "0" * 64, "1" * 64


def verdict(number, label, family=None, release=OLD):
    return make_verdict(make_item(number, topic="t"), label=label, family=family, release=release)


def test_what_has_no_answer_is_lost_and_every_answer_beyond_the_first_is_counted():
    sent = [Sent(f"t-0-{number}", None, "before") for number in range(4)]
    assert delivery(sent, ["t-0-0", "t-0-1", "t-0-1"], ["t-0-1", "t-0-2"]) == (1, 2)
    assert delivery(sent, ["t-0-0", "t-0-1"], ["t-0-2", "t-0-3"]) == (0, 0)


def test_a_fake_is_named_by_its_own_family_alone_and_a_real_by_being_called_real():
    blended = [
        verdict(0, "fake", "blended"),
        verdict(1, "fake", "sharpened"),
        verdict(2, "unknown", "blended"),
    ]
    found = shares("blended", blended)
    assert (found.fake, found.unknown, found.named) == pytest.approx((2 / 3, 1 / 3, 1 / 3))
    assert shares("real", [verdict(0, "real"), verdict(1, "unknown")]).named == 0.5


def part(n, named, unknown=0, fake=0):
    return LabelShares(n=n, real=0, fake=fake, unknown=unknown, named=named)


def test_accuracy_is_that_of_numbers_worked_by_hand():
    families = {
        "real": FamilyShares(before=part(1, 0.9), after=part(1, 0.8)),
        "old": FamilyShares(before=part(1, 0.7), after=part(1, 0.75)),
        "new": FamilyShares(before=part(1, 0.0), after=part(1, 0.95)),
    }
    before, after = average_accuracy(families, "new")
    assert before == pytest.approx(80)
    assert after == pytest.approx(100 * (0.8 + 0.75 + 0.95) / 3)


def judged_twice(changes):
    """Media of each family, each sent to both releases: whether each of them names it."""
    sent, verdicts = [], {}
    for family, pairs in changes.items():
        for pair in pairs:
            medium = len(sent)
            for phase, release, named in zip(("before", "again"), (OLD, NEW), pair, strict=True):
                item = make_item(len(sent), topic="t", digest=f"{medium:064x}")
                label = "unknown" if not named else "real" if family == "real" else "fake"
                found = make_verdict(item, label=label, family=family, release=release)
                verdicts[found.id] = found
                sent.append(Sent(found.id, family, phase))
    return sent, verdicts


def test_forgotten_is_what_the_same_media_lost_on_average_over_the_classes():
    kept, lost, won = (True, True), (True, False), (False, True)
    sent, verdicts = judged_twice({"real": [kept] * 3 + [lost], "old": [lost, won, kept, (False, False)]})
    # Fresh media, and what the first release never saw, have no part in it.
    for number, release in ((90, NEW), (91, OLD)):
        fresh = verdict(number, "unknown", "old", release)
        verdicts[fresh.id] = fresh
        sent.append(Sent(fresh.id, "old", "after"))
    af, low, high = average_forgetting(sent, verdicts, OLD)
    assert af == pytest.approx(100 * (-0.25 + 0) / 2)
    assert low < af < high
    assert average_forgetting(*judged_twice({"old": [lost] * 8}), OLD) == (-100, -100, -100)
    assert average_forgetting([], {}, OLD) == (0, 0, 0)


def test_what_is_sent_again_is_counted_once_in_the_shares():
    sent, verdicts = judged_twice({"old": [(True, False)] * 5})
    shown = family_shares(sent, verdicts, OLD)["old"]
    assert (shown.before.n, shown.after.n) == (5, 0)


def test_reals_of_both_releases_count_by_their_number():
    families = {"real": FamilyShares(before=part(100, 1, unknown=0.1), after=part(300, 1, fake=0.04))}
    assert real_shares(families) == pytest.approx((400, 0.025, 0.03))


@pytest.fixture
def told():
    """The claims of a small perfect run; give `twice` or `lost` to break it."""

    def tell(*, lost=False, twice=False, failed=0, marked=False, unseen=DEFAULT_UNSEEN):
        truth = [
            ("real", "real"),
            ("old", "fake"),
            (unseen, "unknown"),
            ("real", "real"),
            ("old", "fake"),
            (unseen, "fake"),
        ]
        sent, verdicts = [], {}
        for number, (family, label) in enumerate(truth):
            release = OLD if number < 3 else NEW
            sent.append(Sent(f"t-0-{number}", family, "swap"))
            found = verdict(number, label, None if family == "real" else family, release)
            verdicts[found.id] = found
        sent.append(Sent("t-0-9", None, "hostile"))
        ids = list(verdicts)[1 if lost else 0 :] + (["t-0-2"] if twice else [])
        if marked:
            found = forgery_map(PictureMap(np.ones((4, 4), np.float32), (0, 0, 32, 32)), 0.5, 0)
            verdicts["t-0-0"] = verdicts["t-0-0"].model_copy(update={"map": found})
        answers = ids, ["t-0-9"]
        return report(0, unseen, {}, sent, verdicts, answers, OLD, failed, [], [], 0.0).claims

    return tell


def test_a_perfect_run_holds_every_claim(told):
    assert all(told().values())


@pytest.mark.parametrize("phase", ["place", "when"])
@pytest.mark.parametrize("family", ["old", "real"])
def test_what_is_forged_in_a_part_and_clips_have_no_share_in_the_families(phase, family):
    shown = family_shares([Sent("t-0-0", family, phase)], {"t-0-0": verdict(0, "fake", "old")}, OLD)
    assert not shown


@pytest.mark.parametrize("fault", [{"lost": True}, {"twice": True}, {"failed": 1}, {"marked": True}])
def test_a_fault_breaks_a_claim(told, fault):
    assert not all(told(**fault).values())


def test_what_is_claimed_of_the_default_choice_is_not_claimed_of_others(told):
    assert set(told()) - set(told(unseen="another")) == {
        "before: 80% of the unseen fakes are not called real",
        "before: 50% of the unseen fakes are called unknown",
    }


@pytest.mark.parametrize(("steps", "said"), [({"train": 1.0}, "made in this run"), ({}, "an earlier run")])
def test_the_table_says_whether_release_0_was_made_or_taken_from_the_cache(steps, said):
    sent = [Sent("t-0-0", "real", "before"), Sent("t-0-1", "blended", "before")]
    verdicts = {"t-0-0": verdict(0, "real"), "t-0-1": verdict(1, "fake", "blended")}
    counted = report(0, "blended", steps, sent, verdicts, ([*verdicts], []), OLD, 0, [], [], 0.0)
    shown = StringIO()
    show(Console(file=shown, width=200), counted)
    assert said in shown.getvalue()


# What is counted of forged regions and stretches, on maps, told ones and truths worked by hand.
SIDE = 64


def square(left, top, side):
    """A mask of a picture of 64 px, forged in one square."""
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[top : top + side, left : left + side] = 255
    return mask


def mapped(mask):
    """The map that marks just the cells of a mask which lies on cells."""
    return forgery_map(PictureMap(mask[::8, ::8].astype(np.float32) / 255, (0, 0, SIDE, SIDE)), 0.5, 0)


def said(number, label, found):
    return make_verdict(make_item(number), label=label, map=found, width=SIDE, height=SIDE)


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        (square(0, 0, 32), 1.0),
        (square(0, 0, 16), 4 / 16),
        (square(16, 0, 32), 8 / 24),
        (square(32, 32, 16), 0.0),
        (np.zeros((SIDE, SIDE), np.uint8), 0.0),
    ],
)
def test_overlap_is_the_intersection_of_cells_over_their_union(marked, expected):
    assert overlap(mapped(marked), square(0, 0, 32)) == pytest.approx(expected)


def test_a_map_of_a_part_is_held_against_that_part_of_the_truth():
    found = forgery_map(PictureMap(np.ones((2, 2), np.float32), (32, 32, 16, 16)), 0.5, 0)
    assert forged_cells(found, square(40, 32, 8), (2, 2)).tolist() == [[False, True], [False, False]]


def test_each_region_is_counted_up_to_the_hurdle_that_it_fails():
    truth = square(0, 0, 32)
    pictures = [
        Answered(said(0, "fake", mapped(truth)), truth),
        Answered(said(1, "unknown", mapped(square(48, 48, 16))), truth),
        Answered(said(2, "unknown", mapped(np.zeros_like(truth))), truth),
        Answered(said(3, "unknown", None), truth),
        Answered(said(4, "real", None), truth),
    ]
    counted = regions(pictures)
    assert (counted.n, counted.not_real, counted.marked, counted.found) == (5, 4, 2, 1)


def test_what_marks_the_same_place_in_every_picture_finds_no_more_than_chance():
    always = mapped(square(0, 0, 32))
    corners = [square(0, 0, 32), square(32, 0, 32), square(0, 32, 32), square(32, 32, 32)]
    counted = regions([Answered(said(i, "fake", always), one) for i, one in enumerate(corners)])
    assert counted.found == counted.by_chance == 1


def test_small_regions_and_marked_reals_are_counted_apart():
    small, large = square(0, 0, 16), square(0, 0, 32)
    forged = [Answered(said(0, "fake", mapped(small)), small), Answered(said(1, "real", None), large)]
    speck = np.zeros((SIDE, SIDE), np.uint8)
    speck[:8, :8] = 255  # one cell of 64 is less than two in a hundred
    reals = [said(2, "real", None), said(3, "unknown", mapped(small)), said(4, "unknown", mapped(speck))]
    report = place_report(forged, reals)
    assert (report.small.n, report.small.found) == (1, 1)
    assert (report.large.n, report.large.not_real) == (1, 0)
    assert (report.reals, report.reals_marked) == (3, 1)


TRUTH = (Stretch(10, 20), Stretch(40, 70))


def clip(number, truth=(), told_frames=(), family="blended", label="real"):
    """A clip of which stretches are told, half open in frames."""
    segments = tuple(
        Segment(start_s=first / 25, end_s=end / 25, frames=(first, end - 1), score=0.9, box=(0, 0, 128, 128))
        for first, end in told_frames
    )
    verdict = make_verdict(make_item(number), kind="video", label=label, segments=segments)
    return AnsweredClip(verdict, family, truth)


@pytest.mark.parametrize(
    ("told_frames", "expected"),
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
def test_a_stretch_is_found_where_half_of_what_both_cover_is_covered_by_both(told_frames, expected):
    assert hits(np.array(told_frames, np.float64).reshape(-1, 2), TRUTH).sum() == expected


def test_the_last_frame_of_a_told_stretch_belongs_to_it():
    assert segments_of(clip(0, told_frames=((3, 9), (20, 21))).verdict).tolist() == [[3, 9], [20, 21]]
    assert segments_of(make_verdict(make_item())).shape == (0, 2)


def test_clips_of_each_kind_are_counted_apart():
    report = when_report(
        [
            clip(0, family="real"),
            clip(1, family="real", label="unknown"),
            clip(2, family="real", told_frames=((5, 9),)),
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


def test_what_tells_the_same_time_in_every_clip_finds_no_more_than_chance():
    always = ((0, 30),)
    truths = [(Stretch(0, 30),), (Stretch(30, 60),), (Stretch(60, 90),)]
    counted = count_located([clip(number, truth, always) for number, truth in enumerate(truths)])
    assert counted.found == counted.by_chance == 1


def test_chance_is_what_the_other_clips_stretches_would_have_found():
    own = [
        clip(number, (Stretch(9 * number, 9 * number + 9),), ((9 * number, 9 * number + 9),))
        for number in range(4)
    ]
    assert (count_located(own).found, count_located(own).by_chance) == (4, 0)
    assert count_located(own[:1]).by_chance == 0


@pytest.mark.parametrize(("reals_told", "met", "reached"), [(1, 2, [True, True]), (2, 1, [False, False])])
def test_what_is_strived_for_is_one_real_clip_of_twenty_and_half_of_the_stretches(reals_told, met, reached):
    reals = [
        clip(number, told_frames=((5, 9),) * (number < reals_told), family="real") for number in range(20)
    ]
    forged = [clip(20 + number, TRUTH, ((10, 20),) * (number < met)) for number in range(2)]
    assert list(aims(when_report(reals + forged)).values()) == reached

from collections.abc import Callable
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from verdicts import make_item, make_verdict

from deploy.demo.claims import (
    FamilyShares,
    LabelShares,
    Phase,
    Sent,
    average_accuracy,
    average_forgetting,
    delivery,
    family_shares,
    real_shares,
    report,
    shares,
)
from deploy.demo.plan import DEFAULT_UNSEEN
from deploy.demo.tables import show
from detector.records import Label, Verdict
from detector.second_pass.map_look import PictureMap, forgery_map

OLD, NEW = "0" * 64, "1" * 64


def verdict(number: int, label: Label, family: str | None = None, release: str = OLD) -> Verdict:
    return make_verdict(make_item(number, topic="t"), label=label, family=family, release=release)


def test_what_has_no_answer_is_lost_and_every_answer_beyond_the_first_is_counted() -> None:
    sent = [Sent(f"t-0-{number}", None, "before") for number in range(4)]
    assert delivery(sent, ["t-0-0", "t-0-1", "t-0-1"], ["t-0-1", "t-0-2"]) == (1, 2)
    assert delivery(sent, ["t-0-0", "t-0-1"], ["t-0-2", "t-0-3"]) == (0, 0)


def test_a_fake_is_named_by_its_own_family_alone_and_a_real_by_being_called_real() -> None:
    blended = [
        verdict(0, "fake", "blended"),
        verdict(1, "fake", "sharpened"),
        verdict(2, "unknown", "blended"),
    ]
    found = shares("blended", blended)
    assert (found.fake, found.unknown, found.named) == pytest.approx((2 / 3, 1 / 3, 1 / 3))
    assert shares("real", [verdict(0, "real"), verdict(1, "unknown")]).named == 0.5


def part(n: int, named: float, unknown: float = 0, fake: float = 0) -> LabelShares:
    return LabelShares(n=n, real=0, fake=fake, unknown=unknown, named=named)


def test_accuracy_is_that_of_numbers_worked_by_hand() -> None:
    families = {
        "real": FamilyShares(before=part(1, 0.9), after=part(1, 0.8)),
        "old": FamilyShares(before=part(1, 0.7), after=part(1, 0.75)),
        "new": FamilyShares(before=part(1, 0.0), after=part(1, 0.95)),
    }
    before, after = average_accuracy(families, "new")
    assert before == pytest.approx(80)
    assert after == pytest.approx(100 * (0.8 + 0.75 + 0.95) / 3)


def judged_twice(changes: dict[str, list[tuple[bool, bool]]]) -> tuple[list[Sent], dict[str, Verdict]]:
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


def test_forgotten_is_what_the_same_media_lost_on_average_over_the_classes() -> None:
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


def test_what_is_sent_again_is_counted_once_in_the_shares() -> None:
    sent, verdicts = judged_twice({"old": [(True, False)] * 5})
    shown = family_shares(sent, verdicts, OLD)["old"]
    assert (shown.before.n, shown.after.n) == (5, 0)


def test_reals_of_both_releases_count_by_their_number() -> None:
    families = {"real": FamilyShares(before=part(100, 1, unknown=0.1), after=part(300, 1, fake=0.04))}
    assert real_shares(families) == pytest.approx((400, 0.025, 0.03))


@pytest.fixture
def told() -> Callable[..., dict[str, bool]]:
    """The claims of a small perfect run; give `twice` or `lost` to break it."""

    def tell(
        *,
        lost: bool = False,
        twice: bool = False,
        failed: int = 0,
        marked: bool = False,
        unseen: str = DEFAULT_UNSEEN,
    ) -> dict[str, bool]:
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


def test_a_perfect_run_holds_every_claim(told: Callable[..., dict[str, bool]]) -> None:
    assert all(told().values())


@pytest.mark.parametrize("phase", ["place", "when"])
@pytest.mark.parametrize("family", ["old", "real"])
def test_what_is_forged_in_a_part_and_clips_have_no_share_in_the_families(phase: Phase, family: str) -> None:
    shown = family_shares([Sent("t-0-0", family, phase)], {"t-0-0": verdict(0, "fake", "old")}, OLD)
    assert not shown


@pytest.mark.parametrize("fault", [{"lost": True}, {"twice": True}, {"failed": 1}, {"marked": True}])
def test_a_fault_breaks_a_claim(told: Callable[..., dict[str, bool]], fault: dict[str, int]) -> None:
    assert not all(told(**fault).values())


def test_what_is_claimed_of_the_default_choice_is_not_claimed_of_others(
    told: Callable[..., dict[str, bool]],
) -> None:
    assert set(told()) - set(told(unseen="another")) == {
        "before: 80% of the unseen fakes are not called real",
        "before: 50% of the unseen fakes are called unknown",
    }


@pytest.mark.parametrize(("steps", "said"), [({"train": 1.0}, "made in this run"), ({}, "an earlier run")])
def test_the_table_says_whether_release_0_was_made_or_taken_from_the_cache(
    steps: dict[str, float], said: str
) -> None:
    sent = [Sent("t-0-0", "real", "before"), Sent("t-0-1", "blended", "before")]
    verdicts = {"t-0-0": verdict(0, "real"), "t-0-1": verdict(1, "fake", "blended")}
    counted = report(0, "blended", steps, sent, verdicts, ([*verdicts], []), OLD, 0, [], [], 0.0)
    shown = StringIO()
    show(Console(file=shown, width=200), counted)
    assert said in shown.getvalue()

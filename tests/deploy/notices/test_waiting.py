"""What waits for a person is told once: after a day, or at once where a rollout asks for labels."""

from datetime import UTC, datetime, timedelta

import pytest

from deploy.notices.waiting import AFTER, pending_notice
from deploy.release_records import Release, State
from deploy.releases.standing import LedgerState
from deploy.rollout_records import Check, CheckState, Plan, RolloutView, Trial

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NOTHING = RolloutView(trial=None, says="")


def standing(state: State, since: datetime) -> LedgerState:
    release = Release.model_construct(digest="a" * 64, state=state, since=since)
    return LedgerState(releases={release.digest: release})


def on_trial(since: datetime, *states: CheckState, inconclusive: str | None = None) -> RolloutView:
    trial = Trial(
        release="b" * 64, champion="a" * 64, plan=Plan(), began=NOW, since=since, inconclusive=inconclusive
    )
    checks = tuple(
        Check(
            name=f"check {number}",
            counted=1,
            items=9,
            units=9,
            share=0.1,
            low=0,
            high=1,
            tolerated=0.01,
            state=state,
        )
        for number, state in enumerate(states)
    )
    return RolloutView(trial=trial, says="", checks=checks)


@pytest.mark.parametrize(
    ("state", "waited", "count"),
    [
        ("proposed", AFTER, 1),
        ("proposed with findings", AFTER, 1),
        ("approved", AFTER, 1),
        ("proposed", AFTER - timedelta(seconds=1), 0),
        ("live", AFTER, 0),
        ("rejected", AFTER, 0),
    ],
)
def test_a_release_is_told_of_that_has_waited_for_a_day(state: State, waited: timedelta, count: int) -> None:
    assert len(list(pending_notice("id", standing(state, NOW - waited), NOTHING, NOW))) == count


def test_a_rollout_is_told_of_once_for_each_check_that_needs_labels() -> None:
    view = on_trial(NOW, "look", "passed", "look")
    acts = list(pending_notice("id", LedgerState(), view, NOW))
    assert [act.details["reason"].partition(": check")[0] for act in acts] == [
        "it needs a person's labels"
    ] * 2
    later = list(pending_notice("id", LedgerState(), view, NOW + 3 * AFTER))
    assert [act.origin for act in acts] == [act.origin for act in later]


def test_an_inconclusive_rollout_is_told_of_again_after_a_day() -> None:
    view = on_trial(NOW, "look", inconclusive="24 hours did not decide it")
    assert list(pending_notice("id", LedgerState(), view, NOW)) == []
    (act,) = pending_notice("id", LedgerState(), view, NOW + AFTER)
    assert act.details["reason"] == "its rollout is inconclusive: 24 hours did not decide it"


def test_what_waits_anew_is_told_of_anew() -> None:
    first, again = (
        next(pending_notice("id", standing("proposed", NOW - AFTER - more), NOTHING, NOW))
        for more in (timedelta(0), timedelta(1))
    )
    assert first.origin != again.origin
    assert first.origin is not None
    assert len(first.origin) == 32

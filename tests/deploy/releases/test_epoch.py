"""The epoch rises above whatever another wrote on the releases topic, and does not race it."""

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.releases.epoch import is_foreign, next_raise_at, raise_epoch, recent_raises
from deploy.releases.standing import replay
from detector.records import MAX_EPOCH, Rollout

A, B = "a" * 64, "b" * 64
OURS, OTHER = "0" * 32, "1" * 32
NewHistory = Callable[..., Any]

ROLLOUTS = st.builds(
    Rollout,
    ledger=st.sampled_from((OURS, OTHER)),
    epoch=st.integers(0, 3) | st.integers(0, MAX_EPOCH - 1),
    sequence=st.integers(0, 9) | st.integers(0, MAX_EPOCH),
    stable=st.sampled_from((A, B)),
)


def live(new_history: NewHistory) -> Any:
    return new_history(("propose", A), ("approve", A), ("promote", A))


@pytest.mark.slow
@given(st.lists(ROLLOUTS, max_size=5))
def test_after_a_raise_this_ledgers_rollout_outranks_what_was_found(
    new_history: NewHistory, topic: list[Rollout]
) -> None:
    history = live(new_history)
    for found in topic:
        ours = replay(history.events).rollout(OURS)
        moves = raise_epoch(history.events, OURS, found)
        assert bool(moves) == is_foreign(found, ours)
        history.force(*moves)
        ours = replay(history.events).rollout(OURS)
        assert (ours.epoch, ours.sequence) > (found.epoch, found.sequence) or not moves
        assert (ours.stable, ours.ledger) == (A, OURS)
        assert not is_foreign(found, ours) or found == ours
        assert raise_epoch(history.events, OURS, found) == []


def test_what_this_ledger_wrote_itself_raises_nothing(new_history: NewHistory) -> None:
    history = live(new_history)
    earlier = replay(history.events).rollout(OURS)
    for wish in (("propose", B), ("approve", B), ("promote", B)):
        history.wish(*wish)
    assert raise_epoch(history.events, OURS, earlier) == []
    assert raise_epoch(history.events, OURS, replay(history.events).rollout(OURS)) == []


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Rollout(ledger=OURS, epoch=0, sequence=9, stable=B), "restored from an older copy"),
        (Rollout(ledger=OURS, epoch=0, sequence=3, stable=B), "the record was forged"),
        (Rollout(ledger=OTHER, epoch=0, sequence=1, stable=B), "begun anew, another deploy server"),
    ],
)
def test_the_reason_of_a_raise_says_what_was_found_and_what_it_may_mean(
    new_history: NewHistory, found: Rollout, why: str
) -> None:
    (move,) = raise_epoch(live(new_history).events, OURS, found)
    assert move.reason is not None
    assert "named release bbbbbbbbbbbb" in move.reason
    assert why in move.reason


def test_a_ledger_without_a_live_release_outranks_nothing(new_history: NewHistory) -> None:
    assert raise_epoch(new_history().events, OURS, Rollout(ledger=OTHER, epoch=5, sequence=1, stable=B)) == []


def test_above_the_last_epoch_is_none(new_history: NewHistory) -> None:
    history = live(new_history)
    forged = Rollout(ledger=OURS, epoch=MAX_EPOCH, sequence=9, stable=B)
    history.force(*raise_epoch(history.events, OURS, forged))
    assert replay(history.events).rollout(OURS).epoch == MAX_EPOCH
    assert raise_epoch(history.events, OURS, forged) == []


def test_two_servers_over_one_topic_write_ever_more_seldom(new_history: NewHistory) -> None:
    history = live(new_history)
    start = now = history.events[0].at
    raised = []
    while now < start + timedelta(days=2):
        found = Rollout(ledger=OTHER, epoch=replay(history.events).epoch + 1, sequence=1, stable=B)
        now = next_raise_at(history.events, now, interval_s=10)
        history.force(*raise_epoch(history.events, OURS, found), at=now)
        raised.append(now)
    waits = [(later - earlier).total_seconds() for earlier, later in pairwise(raised)]
    assert raised[0] == start
    assert waits[:8] == [20, 40, 80, 160, 320, 640, 1280, 2560]
    assert set(waits[8:]) == {3600}
    assert len(recent_raises(history.events, now)) >= 20
    assert recent_raises(history.events, now + timedelta(days=2)) == []

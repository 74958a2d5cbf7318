"""The rules of release: folds and moves over any history."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.releases.approval import (
    ApprovalError,
    Evidence,
    Standing,
    UnknownRelease,
    approve,
    fold,
    propose,
    reject,
    rollback,
    rollback_target,
)
from deploy.releases.ledger import Event, Move
from updater.records import Candidate, Gate

DIGESTS = tuple(letter * 64 for letter in "abcd")


def candidate(digest: str, holds: bool = True) -> Candidate:
    gate = Gate(name="forgets at most 5 points", value=1.0, bound=5.0, holds=holds)
    return Candidate(
        digest=digest,
        evaluation_digest=digest[::-1].replace(digest[0], "e"),
        parent=None,
        update=1,
        classes=("real", "splice"),
        gates=(gate,),
    )


def evidence(digest: str) -> Evidence:
    return Evidence(digest, candidate(digest).evaluation_digest)


def after(history: tuple[Event, ...], moves: list[Move]) -> tuple[Event, ...]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return history + tuple(Event(len(history) + 1 + i, at, move) for i, move in enumerate(moves))


def act(history: tuple[Event, ...], action: str, digest: str) -> tuple[Event, ...]:
    """One operator's wish; a refused one leaves the history as it was."""
    try:
        match action:
            case "propose":
                moves = propose(history, candidate(digest), evidence(digest), "updater")
            case "approve":
                wanted = candidate(digest).evaluation_digest
                moves = approve(history, digest, wanted, evidence(digest), "ada")
            case "reject":
                moves = reject(history, digest, "no", "ada")
            case _:
                moves = rollback(history, evidence(rollback_target(history).digest), "worse", "ada")
    except ApprovalError:
        return history
    return after(history, moves)


def history_of(*wishes: tuple[str, str]) -> tuple[Event, ...]:
    history: tuple[Event, ...] = ()
    for action, digest in wishes:
        history = act(history, action, digest)
    return history


WISHES = st.lists(
    st.tuples(st.sampled_from(["propose", "approve", "reject", "rollback"]), st.sampled_from(DIGESTS)),
    max_size=40,
)


@given(WISHES)
def test_after_any_sequence_at_most_one_release_is_live_and_the_rollout_names_it(
    wishes: list[tuple[str, str]],
) -> None:
    standing = fold(history_of(*wishes))
    live = [digest for digest, release in standing.releases.items() if release.state == "live"]
    rollout = standing.rollout("0" * 32, 0)
    assert live == ([rollout.stable] if rollout else [])


@given(WISHES)
def test_once_something_is_live_something_stays_live(wishes: list[tuple[str, str]]) -> None:
    history: tuple[Event, ...] = ()
    seen_live = False
    for action, digest in wishes:
        history = act(history, action, digest)
        live = fold(history).live
        assert live is not None or not seen_live
        seen_live = live is not None


@given(WISHES)
def test_a_rejected_release_stays_rejected(wishes: list[tuple[str, str]]) -> None:
    history: tuple[Event, ...] = ()
    rejected: set[str] = set()
    for action, digest in wishes:
        history = act(history, action, digest)
        releases = fold(history).releases
        rejected |= {digest for digest, release in releases.items() if release.state == "rejected"}
        assert all(releases[digest].state == "rejected" for digest in rejected)


@given(WISHES)
def test_every_release_that_goes_live_was_approved_by_a_person_just_before(
    wishes: list[tuple[str, str]],
) -> None:
    history = history_of(*wishes)
    for before, event in pairwise(history):
        if event.move.action == "promote":
            assert (before.move.action, before.move.digest) == ("approve", event.move.digest)
            assert before.move.actor == event.move.actor == "ada"


@given(WISHES)
def test_the_rollouts_sequence_grows_exactly_when_the_rollout_changes(wishes: list[tuple[str, str]]) -> None:
    history = history_of(*wishes)
    previous = None
    for length in range(1, len(history) + 1):
        rollout = fold(history[:length]).rollout("0" * 32, 0)
        if previous is not None and rollout is not None:
            changed = (rollout.stable, rollout.previous) != (previous.stable, previous.previous)
            assert (rollout.sequence > previous.sequence) == changed
        previous = rollout


@given(WISHES, st.sampled_from(DIGESTS))
def test_rollback_undoes_an_approval_whatever_came_before(wishes: list[tuple[str, str]], digest: str) -> None:
    history = act(history_of(*wishes), "propose", digest)
    before = fold(history)
    approved = act(history, "approve", digest)
    if approved == history or before.live is None:
        return
    undone = fold(act(approved, "rollback", digest))
    assert undone.live is not None
    assert undone.live.digest == before.live.digest
    assert undone.releases[digest].state == "rolled back"


def test_an_approval_makes_the_release_live_and_retires_the_one_before() -> None:
    a, b, *_ = DIGESTS
    standing = fold(history_of(("propose", a), ("approve", a), ("propose", b), ("approve", b)))
    assert {digest: release.state for digest, release in standing.releases.items()} == {
        a: "retired",
        b: "live",
    }
    rollout = standing.rollout("0" * 32, 0)
    assert rollout is not None
    assert (rollout.stable, rollout.previous) == (b, a)


def test_a_rolled_back_release_may_be_proposed_and_approved_again() -> None:
    a, b, *_ = DIGESTS
    wishes = [("propose", a), ("approve", a), ("propose", b), ("approve", b), ("rollback", b)]
    assert fold(history_of(*wishes)).releases[b].state == "rolled back"
    again = fold(history_of(*wishes, ("propose", b), ("approve", b)))
    assert again.live is not None
    assert again.live.digest == b


def test_rollback_without_an_earlier_release_is_refused() -> None:
    a = DIGESTS[0]
    with pytest.raises(ApprovalError, match="no earlier release"):
        rollback_target(history_of(("propose", a), ("approve", a)))


@pytest.mark.parametrize("part", ["digest", "evaluation_digest"])
def test_an_approval_is_void_when_the_bytes_on_disk_changed(part: str) -> None:
    a = DIGESTS[0]
    history = history_of(("propose", a))
    changed = replace(evidence(a), **{part: "0" * 64})
    with pytest.raises(ApprovalError, match="bytes give 000"):
        approve(history, a, candidate(a).evaluation_digest, changed, "ada")


@pytest.mark.parametrize("part", ["digest", "evaluation_digest"])
def test_a_rollback_to_changed_bytes_is_refused(part: str) -> None:
    a, b, *_ = DIGESTS
    history = history_of(("propose", a), ("approve", a), ("propose", b), ("approve", b))
    with pytest.raises(ApprovalError, match="bytes give 000"):
        rollback(history, replace(evidence(a), **{part: "0" * 64}), "worse", "ada")


def test_approving_another_evaluation_than_the_proposed_one_is_refused() -> None:
    a = DIGESTS[0]
    with pytest.raises(ApprovalError, match="not the one that was proposed"):
        approve(history_of(("propose", a)), a, "0" * 64, evidence(a), "ada")


def test_a_candidate_whose_gate_does_not_hold_cannot_be_proposed() -> None:
    a = DIGESTS[0]
    with pytest.raises(ApprovalError, match="forgets at most 5 points"):
        propose((), candidate(a, holds=False), evidence(a), "updater")


def test_proposing_twice_writes_once_and_other_evidence_under_the_same_digest_is_refused() -> None:
    a = DIGESTS[0]
    history = history_of(("propose", a))
    assert propose(history, candidate(a), evidence(a), "updater") == []
    other = candidate(a).model_copy(update={"update": 2})
    with pytest.raises(ApprovalError, match="other evidence"):
        propose(history, other, evidence(a), "updater")


def test_a_digest_that_nobody_proposed_is_unknown_and_an_empty_ledger_has_no_rollout() -> None:
    with pytest.raises(UnknownRelease):
        reject((), DIGESTS[0], "no", "ada")
    assert fold(()) == Standing()
    assert fold(()).rollout("0" * 32, 0) is None

"""The rules of release over any history."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.release_records import STATES, Action, TakeOut
from deploy.releases import approval
from deploy.releases.approval import UnknownReleaseError
from deploy.releases.evidence import EvidenceError
from deploy.releases.four_eyes import ApprovalError
from deploy.releases.ledger import DamagedLedgerError, Move
from deploy.releases.standing import TRANSITIONS, Consequence, LedgerState, replay

A, B, C, D = (letter * 64 for letter in "abcd")
LEDGER = "0" * 32

ACTIONS = ("propose", "approve", "promote", "reject", "rollback")
WISHES = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.sampled_from((A, B, C, D)), st.sampled_from((None, None, A, B))),
    max_size=40,
)
ALL_VERBS = (*get_args(Action), *get_args(Consequence))


@pytest.mark.slow
@given(WISHES)
def test_nothing_else_than_the_table_decides_which_state_follows(new_history, wishes):
    history = new_history()
    allowed = {(before, after) for (before, _), after in TRANSITIONS.items()}
    for wish in wishes:
        before = replay(history.events).releases
        history.wish(*wish)
        for digest, release in replay(history.events).releases.items():
            was = before[digest].state if digest in before else None
            assert was == release.state or (was, release.state) in allowed


@given(WISHES, st.sampled_from(ACTIONS), st.sampled_from((A, B, C, D)))
def test_a_rule_allows_no_move_that_the_table_has_not(new_history, wishes, action, digest):
    history = new_history(*wishes)
    known = replay(history.events).releases
    if action == "rollback":
        digest = next((one for one, release in known.items() if release.state == "live"), digest)
    state = known[digest].state if digest in known else None
    assert not history.wish(action, digest) or (state, action) in TRANSITIONS


@given(st.sampled_from(sorted(set(ALL_VERBS) - {"raise epoch"})), st.sampled_from([*STATES]))
def test_a_ledger_that_holds_a_move_against_the_table_is_damaged(new_history, verb, state):
    ways = {
        "proposed": [("propose", A)],
        "approved": [("propose", A), ("approve", A)],
        "rejected": [("propose", A), ("reject", A)],
        "live": [("propose", A), ("approve", A), ("promote", A)],
    }
    if state not in ways or (state, verb) in TRANSITIONS or verb in get_args(Consequence):
        return
    history = new_history(*ways[state])
    history.force(Move("eve", verb, A, "e" * 64))
    with pytest.raises(DamagedLedgerError, match=f"row {len(history.events)} of the ledger breaks the rules"):
        replay(history.events)


@pytest.mark.slow
@given(WISHES)
def test_after_any_sequence_at_most_one_release_is_live_and_the_rollout_names_it(new_history, wishes):
    standing = replay(new_history(*wishes).events)
    live = [digest for digest, release in standing.releases.items() if release.state == "live"]
    rollout = standing.rollout(LEDGER)
    assert live == ([rollout.stable] if rollout else [])


@pytest.mark.slow
@given(WISHES)
def test_once_something_is_live_something_stays_live(new_history, wishes):
    history = new_history()
    seen_live = False
    for wish in wishes:
        history.wish(*wish)
        live = replay(history.events).live
        assert live is not None or not seen_live
        seen_live = live is not None


@pytest.mark.slow
@given(WISHES)
def test_a_rejected_release_stays_rejected(new_history, wishes):
    history = new_history()
    rejected = set()
    for wish in wishes:
        history.wish(*wish)
        releases = replay(history.events).releases
        rejected |= {digest for digest, release in releases.items() if release.state == "rejected"}
        assert all(releases[digest].state == "rejected" for digest in rejected)


@given(WISHES)
def test_what_goes_live_was_approved_by_a_person_and_measured_against_what_was_live(new_history, wishes):
    events = new_history(*wishes).events
    for at, event in enumerate(events):
        if event.move.action == "promote":
            before = replay(events[:at])
            release = before.releases[event.move.digest]
            assert (release.state, release.actor) == ("approved", "ada")
            assert release.candidate.parent == (before.live.digest if before.live else None)


@given(WISHES)
def test_what_waits_was_measured_against_what_is_live(new_history, wishes):
    standing = replay(new_history(*wishes).events)
    live = standing.live.digest if standing.live else None
    waiting = [one for one in standing.releases.values() if one.state in ("proposed", "approved")]
    assert all(release.candidate.parent == live for release in waiting)


@given(WISHES)
def test_the_rollouts_sequence_grows_exactly_when_the_rollout_changes(new_history, wishes):
    events = new_history(*wishes).events
    previous = None
    for length in range(1, len(events) + 1):
        rollout = replay(events[:length]).rollout(LEDGER)
        if previous is not None and rollout is not None:
            changed = (rollout.stable, rollout.previous) != (previous.stable, previous.previous)
            assert (rollout.sequence > previous.sequence) == changed
        previous = rollout


@pytest.mark.slow
@given(WISHES, st.sampled_from((A, B, C, D)))
def test_rollback_undoes_a_promotion_whatever_came_before(new_history, wishes, digest):
    history = new_history(*wishes, ("propose", digest), ("approve", digest))
    before = replay(history.events)
    if not history.wish("promote", digest) or before.live is None:
        return
    history.wish("rollback", digest)
    undone = replay(history.events)
    assert undone.live is not None
    assert undone.live.digest == before.live.digest
    assert undone.releases[digest].state == "rolled back"


def test_approving_and_going_live_are_two_moves(new_history):
    history = new_history(("propose", A), ("approve", A))
    standing = replay(history.events)
    assert (standing.releases[A].state, standing.live) == ("approved", None)
    assert history.moves("approve", A) == []  # whoever asks again may go on from here
    assert history.wish("promote", A)
    live = replay(history.events).live
    assert live is not None
    assert live.digest == A


def test_a_promotion_retires_the_release_before_and_lets_its_other_children_expire(new_history):
    history = new_history(*go_live(A), ("propose", B), ("propose", C), ("approve", C))
    assert history.wish("approve", B)
    assert history.wish("promote", B)
    states = {digest: release.state for digest, release in replay(history.events).releases.items()}
    assert states == {A: "retired", B: "live", C: "expired"}
    with pytest.raises(ApprovalError, match="it is expired; promote is for a release that is approved"):
        history.moves("promote", C)
    rollout = replay(history.events).rollout(LEDGER)
    assert rollout is not None
    assert (rollout.stable, rollout.previous) == (B, A)


def test_of_two_proposals_on_one_parent_the_second_is_refused_once_the_first_is_live(new_history):
    history = new_history(*go_live(A), *go_live(B))
    with pytest.raises(ApprovalError, match="compared with aaaaaaaaaaaa, but bbbbbbbbbbbb is live") as said:
        history.moves("propose", C, A)
    assert "forgewatch update" in str(said.value)


def test_a_proposal_of_an_older_ledger_that_never_expired_is_refused_at_its_approval(new_history):
    history = new_history(*go_live(A), ("propose", B), ("propose", C), ("approve", B))
    moves = history.moves("promote", B)
    history.force(*(move for move in moves if move.action != "expire"))
    with pytest.raises(ApprovalError, match="but bbbbbbbbbbbb is live"):
        history.moves("approve", C)


def test_a_rolled_back_or_expired_release_may_be_proposed_and_approved_again(new_history):
    history = new_history(*go_live(A), ("propose", C), *go_live(B), ("rollback", B))
    states = {digest: release.state for digest, release in replay(history.events).releases.items()}
    assert (states[B], states[C]) == ("rolled back", "expired")
    for digest in (B, C):
        assert history.wish("propose", digest)
    assert history.wish("approve", C)
    assert history.wish("promote", C)


def test_rollback_without_an_earlier_release_is_refused(new_history):
    with pytest.raises(ApprovalError, match="no earlier release"):
        new_history(*go_live(A)).moves("rollback", A)


@pytest.mark.parametrize("part", ["digest", "evaluation_digest"])
def test_an_approval_is_void_when_the_bytes_on_disk_changed(new_history, part):
    history = new_history(("propose", A))
    evidence = history.evidence(A)
    changed = replace(evidence, **{part: "0" * 64})
    with pytest.raises(EvidenceError, match="bytes give 000"):
        history.approve(A, evidence=changed)
    assert history.wish("approve", A)
    with pytest.raises(EvidenceError, match="bytes give 000"):
        history.promote(A, changed)


@pytest.mark.parametrize("part", ["digest", "evaluation_digest"])
def test_a_rollback_to_changed_bytes_is_refused(new_history, part):
    history = new_history(*go_live(A), *go_live(B))
    changed = replace(history.evidence(A), **{part: "0" * 64})
    with pytest.raises(EvidenceError, match="bytes give 000"):
        approval.rollback(history.events, TakeOut(reason="worse"), changed, "ada")


def test_approving_another_evaluation_than_the_proposed_one_is_refused(new_history):
    history = new_history(("propose", A))
    with pytest.raises(ApprovalError, match="not the one that was proposed"):
        history.approve(A, evaluation_digest="0" * 64)


def test_proposing_twice_writes_once_and_other_evidence_under_the_same_digest_is_refused(new_history):
    history = new_history(("propose", A))
    assert history.moves("propose", A) == []
    other = history.candidate(A, None).model_copy(update={"update": 2})
    with pytest.raises(ApprovalError, match="other evidence"):
        approval.propose(history.events, other, history.evidence(A), history.bounds, "updater")


def test_a_digest_that_nobody_proposed_is_unknown_and_an_empty_ledger_has_no_rollout():
    with pytest.raises(UnknownReleaseError):
        approval.reject((), A, "no", "ada")
    assert replay(()) == LedgerState()
    assert replay(()).rollout(LEDGER) is None


def go_live(digest):
    return [("propose", digest), ("approve", digest), ("promote", digest)]

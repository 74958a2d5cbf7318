"""Who may approve, how many must, what an approval binds, and when it counts for nothing."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.releases.four_eyes import ApprovalError, by_one_hand, counting
from deploy.releases.ledger import Move
from deploy.releases.standing import replay

A, B = "a" * 64, "b" * 64
"""Makes a conftest.History of wishes."""


@pytest.fixture
def history(new_history):
    asked = new_history()
    asked.requested_by = "ann"
    assert asked.wish("propose", A)
    return asked


def actions(moves):
    return [move.action for move in moves]


def test_who_asked_for_the_update_cannot_approve_what_came_of_it(history):
    with pytest.raises(ApprovalError, match="ann asked for the update that made release aaaaaaaaaaaa"):
        history.approve(A, "ann")
    with pytest.raises(ApprovalError, match="updater proposed release"):
        history.approve(A, "updater")
    assert actions(history.approve(A, "bea")) == ["approve"]
    history.terms = replace(history.terms, four_eyes=False)
    assert actions(history.approve(A, "ann")) == ["approve"]


@pytest.mark.parametrize(
    ("given", "actor", "says"),
    [
        ((), "ANN", "ann asked for"),
        ((), "\uff41nn ", "ann asked for"),
        ((), "Updater", "updater proposed"),
        ((("ann", "zed"),), "zed", "zed has a token by way of ann"),
        ((("Ann ", "zed"),), "Zed", "Zed has a token by way of ann"),
        ((("ann", "bob"), ("bob", "cat"), ("cat", "zed")), "zed", "zed has a token by way of ann"),
        ((("ann", "ann"), ("ann", "bob"), ("bob", "ann"), ("bob", "zed")), "zed", "by way of ann"),
        ((("root", "bob"), ("bob", "ann")), "root", "has a token by way of root"),
        ((("bob", "updater"),), "bob", "updater proposed release .* by way of bob"),
        ((("root", "ann"), ("root", "bea"), ("ann", "bob"), ("bea", "cat")), "bea", None),
        ((("root", "ann"), ("root", "bea"), ("ann", "bob")), "cem", None),
    ],
)
def test_who_is_one_person_with_who_asked_by_tokens_approves_nothing(history, given, actor, says):
    history.terms = replace(history.terms, given=given)
    if says is not None:
        with pytest.raises(ApprovalError, match=says):
            history.approve(A, actor)
        return
    (move,) = history.approve(A, actor)
    # Nobody can tell these apart from one person with two tokens of root's: it stands beside the approval.
    assert move.bound.token_by == ("root" if actor == "bea" else None)


def test_a_second_token_of_ones_own_is_no_second_judge():
    judges = {
        "m-0-1": ("ada",),
        "m-0-2": ("ada", "zed"),
        "m-0-3": ("ada", "zed", "bob"),
        "m-0-4": ("bob", "cem"),
    }
    tokens = [("root", "ada"), ("Ada", "zed"), ("root", "bob")]
    assert by_one_hand(judges, tokens) == {"m-0-1", "m-0-2"}
    assert by_one_hand(judges, []) == {"m-0-1"}


def test_two_approvals_are_not_of_one_person_by_another_name(history):
    history.terms = replace(history.terms, needed=2, given=(("bea", "zed"),))
    history.force(*history.approve(A, "bea"))
    assert history.approve(A, " BEA") == []
    with pytest.raises(ApprovalError, match=r"bea approved release .* zed has a token by way of bea"):
        history.approve(A, "zed")
    assert actions(history.approve(A, "cem", promote=True)) == ["approve", "promote"]


def test_an_automatic_update_has_nobody_who_asked(new_history):
    history = new_history(("propose", A))
    assert replay(history.events).releases[A].requested_by is None
    assert actions(history.approve(A, "ann")) == ["approve"]


def test_who_asked_may_take_live_what_another_person_approved(history):
    history.force(*history.approve(A, "bea"))
    with pytest.raises(ApprovalError, match="ann asked"):
        history.approve(A, "ann", promote=True)
    assert actions(history.promote(A)) == ["promote"]


def test_a_labeller_s_approval_says_so_and_a_setting_forbids_it(history):
    history.force(*history.approve(A, "bea", labelled=3))
    assert replay(history.events).releases[A].approvals[0].labelled == 3
    history.terms = replace(history.terms, labellers=False)
    with pytest.raises(ApprovalError, match="learnt from labels of cem, whom a setting keeps"):
        history.approve(A, "cem", labelled=1)
    assert actions(history.approve(A, "cem")) == ["approve"]


def test_two_approvals_are_of_two_people(history):
    history.terms = replace(history.terms, needed=2)
    history.force(*history.approve(A, "bea", promote=True))
    assert replay(history.events).releases[A].state == "approved"
    assert history.approve(A, "bea", promote=True) == []
    with pytest.raises(ApprovalError, match="has 1 of 2 approvals that count"):
        history.promote(A)
    assert actions(history.approve(A, "cem", promote=True)) == ["approve", "promote"]


def test_an_approval_expires_at_its_moment_and_another_may_be_given(history):
    history.force(*history.approve(A, "bea"))
    history.now += timedelta(days=7) - timedelta(microseconds=1)
    assert actions(history.promote(A)) == ["promote"]
    history.now += timedelta(microseconds=1)
    with pytest.raises(ApprovalError, match=r"has 0 of 1 approvals that count \(1 expired\)"):
        history.promote(A)
    assert actions(history.approve(A, "bea", promote=True)) == ["approve", "promote"]


@pytest.mark.parametrize("ends", ["expire", "rollback"])
def test_after_a_rollback_or_an_expiry_it_counts_for_nothing(new_history, ends):
    history = new_history(("propose", A), ("approve", A), ("promote", A), ("propose", B), ("approve", B))
    stale = replay(history.events).releases[B].ledger
    if ends == "rollback":
        assert history.wish("promote", B)
        assert history.wish("rollback", B)
    else:
        history.force(Move("ada", "expire", B, "e" * 64))
    assert replay(history.events).releases[B].approvals == ()
    assert history.wish("propose", B)
    assert not history.wish("promote", B)
    with pytest.raises(ApprovalError, match="it was proposed anew since you looked at it"):
        history.approve(B, ledger=stale)  # as a form that was sent once more
    assert actions(history.approve(B, ledger=replay(history.events).releases[B].ledger)) == ["approve"]


def test_one_that_retired_and_came_back_keeps_its_approvals(new_history):
    history = new_history(("propose", A), ("approve", A), ("promote", A))
    given_ = replay(history.events).releases[A].approvals
    for action in ("propose", "approve", "promote", "rollback"):
        assert history.wish(action, B)
    assert replay(history.events).releases[A].approvals == given_
    assert len(given_) == 1


@pytest.mark.parametrize("part", ["ledger", "snapshot"])
def test_an_approval_of_another_ledger_or_snapshot_counts_for_nothing(history, part):
    """Control of the digests of artifact and evaluation: test_approval."""
    (move,) = history.approve(A, "bea")
    history.force(replace(move, bound=move.bound.model_copy(update={part: "0" * 64})))
    with pytest.raises(ApprovalError, match="has 0 of 1 approvals that count"):
        history.promote(A)
    assert actions(history.approve(A, "cem", promote=True)) == ["approve", "promote"]


def test_an_approval_from_before_they_bound_anything_counts_for_nothing(history):
    history.force(Move("bea", "approve", A, history.evidence(A).evaluation_digest))
    with pytest.raises(ApprovalError, match="0 of 1 approvals"):
        history.promote(A)
    assert actions(history.approve(A, "bea", promote=True)) == ["approve", "promote"]


PEOPLE = st.sampled_from(["ann", "bea", "cem", "dan"])


@given(st.lists(st.tuples(PEOPLE, st.integers(0, 5)), max_size=12), st.sampled_from([1, 2]))
def test_nothing_goes_live_but_by_enough_others_within_their_time(new_history, approvals, needed):
    """Oracle: who else than ann approved in the last seven days."""
    history = new_history()
    history.requested_by, history.terms = "ann", replace(history.terms, needed=needed)
    history.wish("propose", A)
    latest = {}
    for person, days in approvals:
        history.now += timedelta(days=days)
        try:
            moves = history.approve(A, person)
        except ApprovalError:
            assert person == "ann"
            continue
        history.force(*moves)
        if person not in latest or history.now - latest[person] >= timedelta(days=7):
            latest[person] = history.now
    recent = {name for name, at in latest.items() if history.now - at < timedelta(days=7)}
    assert {a.actor for a in counting(replay(history.events).releases[A], history.now)} == recent
    assert history.wish("promote", A) == (len(recent) >= needed)

"""A rollout by the ledger: its steps, what is served at each, and what is taken back."""

from dataclasses import replace
from datetime import timedelta

import pytest

from deploy.release_records import TakeOut
from deploy.releases import approval
from deploy.releases.evidence import EvidenceError
from deploy.releases.four_eyes import ApprovalError
from deploy.releases.ledger import Move
from deploy.releases.standing import replay
from deploy.rollout_records import Plan, Turn, Waive
from deploy.rollouts import moves

A, B, C = (letter * 64 for letter in "abc")
LEDGER = "0" * 32


@pytest.fixture
def begun(new_history):
    """A is live, and the rollout of B has begun; C waits."""
    history = new_history(("propose", A), ("approve", A), ("promote", A), ("propose", B), ("propose", C))
    assert history.wish("approve", C)
    history.force(*history.approve(B, plan=Plan()))
    assert history.wish("promote", B)
    return history


def on(history, **expected):
    rollout = replay(history.events).rollout(LEDGER)
    assert rollout is not None
    found = rollout.model_dump(include=set(expected))
    assert found == expected


def step(history):
    standing = replay(history.events)
    assert standing.trial is not None
    history.force(*moves.step_on(history.events, standing.trial, (), history.evidence(B)))


def state(history, digest):
    return str(replay(history.events).releases[digest].state)


def test_a_rollout_goes_from_shadow_by_its_steps_to_live(begun):
    assert state(begun, B) == "shadow"
    on(begun, stable=A, canary=B, canary_share=0, shared_share=0.25)
    for answered, shared in ((0.05, 0.25), (0.25, 0.25), (1.0, 1.0)):
        before = replay(begun.events).turned
        step(begun)
        assert state(begun, B) == "canary"
        on(begun, stable=A, canary=B, canary_share=answered, shared_share=shared)
        assert replay(begun.events).turned > before
    step(begun)
    on(begun, stable=B, canary=None, previous=A, canary_share=0, shared_share=0)
    assert [state(begun, digest) for digest in (A, B, C)] == ["retired", "live", "expired"]


def test_the_plan_now_is_a_swap_and_so_is_the_first_release(new_history):
    history = new_history(("propose", A))
    history.force(*history.approve(A, plan=Plan()))
    assert history.wish("promote", A)
    assert state(history, A) == "live"


def test_two_rollouts_do_not_go_on_at_once(begun):
    with pytest.raises(ApprovalError, match="is on trial: one rollout at a time"):
        begun.promote(C)


def test_the_evidence_steps_once_however_often_it_is_looked_at(begun):
    trial = replay(begun.events).trial
    step(begun)
    assert moves.step_on(begun.events, trial, (), begun.evidence(B)) == []
    assert moves.inconclusive(begun.events, trial, (), "late") == []


def test_hold_resume_extend_and_waive_change_the_trial_and_nothing_that_is_served(begun):
    served = replay(begun.events).rollout(LEDGER)
    begun.force(*moves.by_person(begun.events, B, "hold", "holiday", "ada", begun.evidence))
    assert replay(begun.events).trial.held
    with pytest.raises(ApprovalError, match="holds it already"):
        moves.by_person(begun.events, B, "hold", "again", "ada", begun.evidence)
    begun.force(*moves.by_person(begun.events, B, "resume", "back", "ada", begun.evidence))
    with pytest.raises(ApprovalError, match="not inconclusive"):
        moves.by_person(begun.events, B, "extend", "more", "ada", begun.evidence)
    assert replay(begun.events).rollout(LEDGER) == served


@pytest.mark.parametrize(
    "way",
    [
        "propose",
        "propose approve",
        "propose approve promote",
        "propose approve promote step",
        "propose approve promote step step step step",
        "propose approve promote hold resume",
        "propose approve promote inconclusive extend",
        "propose approve promote step step step step rollback",
    ],
)
@pytest.mark.parametrize("purged", [True, False])
def test_each_way_to_live_asks_whether_what_a_release_was_made_of_was_purged(new_history, way, purged):
    """Before its last act. With the control; a challenger is taken out whatever its champion was made of."""
    history = new_history(("propose", A), ("approve", A), ("promote", A))
    found, (*before, last) = history.evidence, way.split()

    def wish(act):
        trial = replay(history.events).trial
        match act:
            case "approve":
                return list(history.approve(B, plan=Plan()))
            case "step":
                return moves.step_on(history.events, trial, (), history.evidence(B))
            case "inconclusive":
                return moves.inconclusive(history.events, trial, (), "late")
            case "hold" | "resume" | "extend":
                return moves.by_person(history.events, B, act, "why", "ada", history.evidence)
            case _:
                return list(history.moves(act, B))

    for act in before:
        history.force(*wish(act))
    if not purged:
        assert wish(last)
        return
    history.evidence = lambda digest: replace(found(digest), purged=lambda: 3)
    with pytest.raises(EvidenceError, match="made of 3 items that were purged"):
        wish(last)
    if replay(history.events).trial is not None:
        assert wish("rollback")


def test_inconclusive_goes_back_to_shadow_and_is_left_by_more_time_once(begun):
    step(begun)
    trial = replay(begun.events).trial
    begun.force(*moves.inconclusive(begun.events, trial, (), "24 hours did not decide reals"))
    assert state(begun, B) == "shadow"
    on(begun, canary_share=0, shared_share=0.25)
    begun.force(*moves.by_person(begun.events, B, "extend", "a quiet day", "ada", begun.evidence))
    trial = replay(begun.events).trial
    assert (trial.inconclusive, trial.extended) == (None, True)
    begun.force(*moves.inconclusive(begun.events, trial, (), "again"))
    with pytest.raises(ApprovalError, match="more time once"):
        moves.by_person(begun.events, B, "extend", "more", "ada", begun.evidence)


def test_twenty_labels_settle_what_is_inconclusive(begun):
    trial = replay(begun.events).trial
    begun.force(*moves.inconclusive(begun.events, trial, (), "reals"))
    begun.force(*moves.judge(begun.events, B, {f"m-0-{n}": "real" for n in range(19)}, "eve", begun.terms))
    assert replay(begun.events).trial.inconclusive == "reals"
    begun.force(*moves.judge(begun.events, B, {"m-0-19": "gan"}, "eve", begun.terms))
    assert replay(begun.events).trial.inconclusive is None
    assert len(replay(begun.events).trial.labels) == 20


def test_who_asked_judges_nothing_and_a_second_persons_word_is_told_from_the_same_one_again(begun):
    with pytest.raises(ApprovalError, match="another person must judge"):
        moves.judge(begun.events, B, {"m-0-1": "gan"}, "updater", begun.terms)
    for actor in ("eve", " EVE", "bob"):
        begun.force(*moves.judge(begun.events, B, {"m-0-1": "gan", "m-0-2": "real"}, actor, begun.terms))
    begun.force(*moves.judge(begun.events, B, {"m-0-2": "gan"}, "bob", begun.terms))
    assert replay(begun.events).trial.judges == {"m-0-1": ("eve", "bob"), "m-0-2": ("bob",)}


def test_a_check_is_waived_and_a_source_left_out_by_name_once_and_not_by_who_asked(begun):
    def waive(name, actor, reason="why", **of):
        asked = Waive(digest=B, check=name, reason=reason, **of)
        return moves.waive(begun.events, asked, actor, begun.terms)

    with pytest.raises(ApprovalError, match="is no check; they are 'no source decides alone', "):
        waive("reals", "ada")
    name = "real → unknown or a known fake"
    for what, of, gone in ((name, {}, "waived"), ("camera 7", {"of_source": True}, "left out")):
        with pytest.raises(ApprovalError, match="another person must waive"):
            waive(what, "updater", **of)
        begun.force(*waive(what, "ada", "a new camera", **of))
        with pytest.raises(ApprovalError, match=f"was {gone} before: a new camera"):
            waive(what, "bob", **of)
    trial = replay(begun.events).trial
    assert (trial.waived, trial.without) == ({name: "a new camera"}, {"camera 7": "a new camera"})


def test_a_person_takes_its_answers_back_and_the_steps_begin_anew(begun):
    step(begun)
    step(begun)
    begun.force(*moves.by_person(begun.events, B, "back to shadow", "odd", "ada", begun.evidence))
    assert replay(begun.events).trial.step == 0
    step(begun)
    on(begun, canary_share=0.05)


def test_a_rollback_takes_the_release_on_trial_and_the_live_one_only_by_its_name(begun):
    step(begun)
    out, back = approval.to_take_out(begun.events, None)
    assert (out.digest, back.digest) == (B, A)
    with pytest.raises(ApprovalError, match="neither answers nor is on trial"):
        approval.to_take_out(begun.events, C)
    begun.force(*approval.rollback(begun.events, TakeOut(reason="odd", digest=B), begun.evidence(A), "ada"))
    assert (state(begun, A), state(begun, B)) == ("live", "rolled back")
    on(begun, stable=A, canary=None, canary_share=0, shared_share=0)
    with pytest.raises(ApprovalError, match=r"neither answers nor is on trial: aaaaaaaaaaaa is live; look"):
        approval.to_take_out(begun.events, B)
    with pytest.raises(ApprovalError, match="no earlier release"):
        approval.to_take_out(begun.events, A)


def test_what_a_canary_answered_is_taken_back_from_its_first_word_on(begun):
    step(begun)
    first = begun.events[-1].at
    begun.now += timedelta(hours=1)
    step(begun)
    begun.force(*approval.rollback(begun.events, TakeOut(reason="odd"), begun.evidence(A), "ada"))
    (retraction,) = replay(begun.events).rollout(LEDGER).retractions
    assert (retraction.release, retraction.number) == (B, begun.events[-1].sequence)
    assert retraction.since_ms == int(first.timestamp() * 1000)
    begun.force(Move("rollout", "retracted", B, "0" * 64, rollout=Turn(outcomes={"same": 3})))
    assert replay(begun.events).rollout(LEDGER).retractions == ()


def test_a_release_that_goes_live_while_it_is_taken_back_is_trusted_until_it_is_rolled_back_again(begun):
    step(begun)
    begun.force(*approval.rollback(begun.events, TakeOut(reason="odd"), begun.evidence(A), "ada"))
    (first,) = replay(begun.events).retractions
    begun.now += timedelta(hours=1)
    assert begun.wish("propose", B)
    assert begun.wish("approve", B)
    assert replay(begun.events).retractions == (first,)
    assert begun.wish("promote", B)
    assert replay(begun.events).retractions == ()
    assert begun.wish("rollback", B)
    (second,) = replay(begun.events).retractions
    assert (second.release, second.since_ms) == (B, first.since_ms)  # what was left of the first is in it
    assert second.number > first.number


def test_two_releases_are_taken_back_at_once_and_each_ends_alone(new_history):
    wishes = [(action, digest) for digest in (A, B, C) for action in ("propose", "approve", "promote")]
    history = new_history(*wishes, ("rollback", C), ("rollback", B))
    assert [each.release for each in replay(history.events).retractions] == [C, B]
    history.force(Move("rollout", "retracted", C, "0" * 64, rollout=Turn(outcomes={"same": 1})))
    assert [each.release for each in replay(history.events).retractions] == [B]


def test_a_release_that_answered_nothing_and_one_whose_verdicts_stand_are_not_taken_back(begun):
    shadowed = begun.events
    begun.force(*approval.rollback(shadowed, TakeOut(reason="odd"), begun.evidence(A), "ada"))
    assert replay(begun.events).retractions == ()
    begun.events = shadowed
    step(begun)
    wanted = TakeOut(reason="odd", retract=False)
    begun.force(*approval.rollback(begun.events, wanted, begun.evidence(A), "ada"))
    assert replay(begun.events).retractions == ()


def test_the_trial_ends_with_the_champion_that_it_was_measured_against(new_history):
    history = new_history(
        *(
            wish
            for digest in (A, C)
            for wish in (("propose", digest), ("approve", digest), ("promote", digest))
        ),
        ("propose", B),
    )
    history.force(*history.approve(B, plan=Plan()))
    assert history.wish("promote", B)
    wanted = TakeOut(reason="worse", digest=C)
    history.force(*approval.rollback(history.events, wanted, history.evidence(A), "ada"))
    assert [state(history, digest) for digest in (A, C, B)] == ["live", "rolled back", "expired"]
    on(history, stable=A, canary=None)
    assert replay(history.events).trial is None


def test_two_approvals_name_one_plan(new_history):
    history = new_history(("propose", A))
    history.terms = history.terms.__class__(**vars(history.terms) | {"needed": 2})
    history.force(*history.approve(A, "ada", plan=Plan()))
    history.force(*history.approve(A, "bob", plan=Plan.parse("now", 0, 0)))
    with pytest.raises(ApprovalError, match=r"several plans \(25,5,25,100 and now\)"):
        history.promote(A)


def test_labels_count_anew_where_it_is_inconclusive_again_and_each_item_once(begun):
    labels = {f"m-0-{n}": "real" for n in range(20)}
    begun.force(*moves.inconclusive(begun.events, replay(begun.events).trial, (), "reals"))
    begun.force(*moves.judge(begun.events, B, labels, "eve", begun.terms))
    assert replay(begun.events).trial.inconclusive is None
    begun.force(*moves.inconclusive(begun.events, replay(begun.events).trial, (), "reals again"))
    begun.force(*moves.judge(begun.events, B, labels, "eve", begun.terms))
    assert replay(begun.events).trial.inconclusive == "reals again"
    begun.force(*moves.judge(begun.events, B, {f"n-0-{n}": "real" for n in range(20)}, "eve", begun.terms))
    assert replay(begun.events).trial.inconclusive is None


def test_what_was_asked_once_and_when_its_steps_began_stays_known(begun):
    step(begun)
    first = begun.events[-1].at
    begun.force(*moves.inconclusive(begun.events, replay(begun.events).trial, (), "reals"))
    assert not replay(begun.events).trial.asked
    begun.force(*moves.by_person(begun.events, B, "extend", "a quiet day", "ada", begun.evidence))
    begun.now += timedelta(hours=1)
    step(begun)
    trial = replay(begun.events).trial
    assert (trial.asked, trial.steps) == (True, (first, begun.now))

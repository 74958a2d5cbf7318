"""Whatever the evidence shows and whatever people do, in any order: only passed checks take a rollout on."""

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.release_records import TakeOut
from deploy.releases import approval
from deploy.releases.four_eyes import ApprovalError
from deploy.releases.standing import LedgerState, apply, replay
from deploy.rollout_records import Check, Plan, Waive
from deploy.rollouts import moves
from deploy.rollouts.moves import RolloutFacts, decide

A, B = ("a" * 64, "b" * 64)
NAMES = ("real → unknown or a known fake", "could not score, net")
OPEN = ("undecided", "look", "inconclusive")
STATES = ("passed", "passed", "passed", "not measured", "failed", *OPEN)
LOOKS = st.tuples(
    st.tuples(*[st.sampled_from(STATES)] * len(NAMES)),
    st.integers(0, 900),
    st.timedeltas(timedelta(0), timedelta(hours=13)),
)
ACTS = st.sampled_from(["hold", "resume", "back to shadow", "extend", "waive", "judge"])


def looked(trial, states, answered, now):
    """What a look shows; what was waived is not asked for."""
    checks = [
        Check(
            name=name,
            counted=0,
            items=0,
            units=0,
            low=1,
            high=1,
            tolerated=0.03,
            state="waived" if name in trial.waived else state,
        )
        for name, state in zip(NAMES, states, strict=True)
    ]
    return RolloutFacts(tuple(checks), 100, answered, now, True)


def take_turn(history, states, answered):
    """Make the turn that a controller makes, as the ledger lets it."""
    trial = replay(history.events).trial
    if trial is None:
        return
    facts = looked(trial, states, answered, history.now)
    checks, decision = tuple(facts.checks), decide(trial, facts, history.now)
    if decision.turn == "rollback":
        wanted = TakeOut(reason=decision.says, digest=B)
        history.force(*approval.rollback(history.events, wanted, history.evidence(A), "rollout", checks))
    elif decision.turn == "inconclusive":
        history.force(*moves.inconclusive(history.events, trial, checks, decision.says))
    elif decision.turn != "wait":
        history.force(*moves.step_on(history.events, trial, checks, history.evidence(B)))


def act(history, what, number):
    """Let a person act, where the rules let them."""
    try:
        if what == "waive":
            name = NAMES[number % 2]
            history.force(
                *moves.waive(
                    history.events, Waive(digest=B, check=name, reason="known"), "bob", history.terms
                )
            )
        elif what == "judge":
            labels = {f"media-0-{number}-{each}": "real" for each in range(7)}
            history.force(*moves.judge(history.events, B, labels, "eve", history.terms))
        else:
            history.force(*moves.by_person(history.events, B, what, "why", "ada", history.evidence))
    except ApprovalError:
        pass


@settings(max_examples=120, deadline=None)
@given(st.lists(LOOKS | ACTS, max_size=30))
def test_no_sequence_goes_on_without_passed_checks_at_each_step(new_history, sequence):
    history = new_history(("propose", A), ("approve", A), ("promote", A), ("propose", B))
    history.force(*history.approve(B, plan=Plan()))
    assert history.wish("promote", B)
    began = len(history.events)
    for number, each in enumerate(sequence):
        if isinstance(each, str):
            act(history, each, number)
        else:
            states, answered, passed = each
            history.now += passed
            take_turn(history, states, answered)
    steps, extended, waived, since = 0, 0, set(), history.events[began - 1].at
    held = inconclusive = False
    for event in history.events[began:]:
        action, turn = event.move.action, event.move.rollout
        if action in ("step", "promote"):
            states_now = {check.name: check.state for check in turn.checks}
            assert set(states_now.values()) <= {"passed", "not measured", "waived"}
            assert {name for name, state in states_now.items() if state == "waived"} == waived
            assert (held, inconclusive) == (False, False)
            assert event.at - since >= timedelta(minutes=10)
            assert turn.step == steps + 1 if action == "step" else steps == len(Plan().canary)
            steps, since = steps + 1, event.at
        elif action in ("inconclusive", "back to shadow"):
            steps, since = 0, event.at
            inconclusive = inconclusive or action == "inconclusive"
        elif action == "extend":
            assert inconclusive
            inconclusive, extended, since = False, extended + 1, event.at
        elif action == "waive":
            assert turn.check not in waived
            waived, inconclusive, since = waived | {turn.check}, False, event.at
        elif action in ("hold", "resume"):
            held = action == "hold"
        elif action == "judge" and inconclusive:
            trial = standing_after(history, event.sequence).trial
            assert trial is not None
            inconclusive = trial.inconclusive is not None
            since = trial.since
    assert extended <= 1
    # In any parts, the ledger says the same.
    for cut in range(0, len(history.events), 7):
        again = apply(apply(LedgerState(), history.events[:cut]), history.events[cut:])
        assert again == replay(history.events)


def standing_after(history, number):
    """Where everything stood after an event."""
    return apply(LedgerState(), history.events[:number])

"""What follows from the checks: failing first, nothing for want of data, never a promotion by time."""

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.rollout_records import Check, Expected, Plan, Trial
from deploy.rollouts.bets import LOG_20, Bets, bets_to_pass
from deploy.rollouts.checks import NOT_ALONE, REAL_TO_NEW, REALS_LOST, UNKNOWN_MORE, expected_of, family_check
from deploy.rollouts.moves import RolloutFacts, decide
from tests.deploy.rollouts.conftest import BEGAN
from updater.evaluation_parts import Flip, Flips


def check(state, **given):
    return Check(
        **{
            "name": "reals",
            "counted": 1,
            "items": 9,
            "units": 5,
            "share": 0.1,
            "low": 0,
            "high": 1,
            "tolerated": 0.03,
        }
        | given,
        state=state,
    )


def facts(*checks, **given):
    return RolloutFacts(
        **{"checks": checks, "shared": 900, "answered": 0, "newest": BEGAN, "complete": True} | given
    )


SOON, LATER = BEGAN + timedelta(minutes=9), BEGAN + timedelta(minutes=11)


def at(trial, **changed):
    return trial.model_copy(update=changed)


@pytest.mark.parametrize(
    ("changed", "given", "turn", "says"),
    [
        ({}, {}, "step", "All checks passed"),
        ({"step": 1}, {"answered": 499}, "wait", "499 of 500 answers"),
        ({"step": 1}, {"answered": 500}, "step", "All checks"),
        ({"step": 3}, {"answered": 500}, "promote", "every step"),
        ({"held": True}, {}, "wait", "holds it"),
        ({"inconclusive": "too few"}, {}, "wait", "waits for a person: too few"),
        ({}, {"complete": False}, "wait", "are read"),
    ],
)
def test_passed_checks_step_on_once_time_and_answers_are_there(trial, changed, given, turn, says):
    decision = decide(at(trial, **changed), facts(check("passed"), **given), LATER)
    assert decision.turn == turn
    assert says in decision.says
    assert decide(at(trial, **changed), facts(check("passed"), **given), SOON).turn == "wait"


@pytest.mark.parametrize("state", ["undecided", "look"])
def test_what_is_not_decided_waits_and_after_a_day_is_inconclusive(trial, state):
    assert decide(trial, facts(check(state)), LATER).turn == "wait"
    day = BEGAN + timedelta(hours=24)
    assert decide(trial, facts(check(state), newest=day), day).turn == "inconclusive"
    assert decide(trial, facts(check(state), shared=50_000), LATER).turn == "inconclusive"
    few = facts(check("passed"), newest=day, answered=499)
    assert decide(at(trial, step=1), few, day).turn == "inconclusive"
    assert decide(trial, facts(check("passed"), newest=day), day).turn == "step"


def test_a_person_is_asked_once_where_only_new_names_show_that_all_is_well(trial):
    alone = check("inconclusive", name=NOT_ALONE, reason="an approver waives it")
    inconclusive = facts(alone, check("inconclusive"), check("passed"))
    asked = decide(trial, inconclusive, SOON)
    assert (asked.turn, "an approver waives it" in asked.says) == ("inconclusive", True)
    for later, of in ((trial, facts(alone, check("undecided"))), (at(trial, asked=True), inconclusive)):
        assert decide(later, of, LATER).turn == "wait"
    waived = facts(check("waived", name=NOT_ALONE), check("passed"))
    assert decide(at(trial, asked=True), waived, LATER).turn == "step"


def test_an_hour_without_any_shared_item_is_inconclusive_and_never_a_pass(trial):
    hour = BEGAN + timedelta(hours=1)
    for state in ("passed", "undecided"):
        decision = decide(trial, facts(check(state), newest=None), hour)
        assert (decision.turn, decision.says) == ("inconclusive", "no item was scored by both for an hour")


@pytest.mark.parametrize("changed", [{}, {"held": True}, {"inconclusive": "x"}, {"step": 2}])
def test_a_failed_check_takes_it_out_wherever_it_stands(trial, changed):
    decision = decide(at(trial, **changed), facts(check("failed"), complete=False), SOON)
    assert decision.turn == "rollback"
    assert "reals: 10.0% (1 of 9 items" in decision.says


def test_what_only_one_source_shows_takes_it_back_to_shadow_and_no_further(trial):
    doubtful = check("inconclusive", low=0.05, reason="only odd shows it")
    assert decide(at(trial, step=2), facts(doubtful), LATER).turn == "inconclusive"
    assert decide(trial, facts(check("inconclusive", low=0.0)), LATER).turn == "wait"


@pytest.mark.parametrize(
    ("text", "canary"), [("25,5,25,100", (0.05, 0.25, 1)), ("now", ()), ("100, 100", (1,))]
)
def test_a_plan_is_read_as_it_is_written(text, canary):
    plan = Plan.parse(text, 10, 500)
    assert plan.canary == canary
    assert str(plan) == text.replace(" ", "")


@pytest.mark.parametrize(
    "text", ["", "25", "25,5", "25,50,5,100", "0,5,100", "25,5,101", "a,b", "25,,100", "nan,100"]
)
def test_a_plan_that_does_not_rise_to_everything_is_refused(text):
    with pytest.raises(ValueError, match=r"is no plan: give `now`"):
        Plan.parse(text, 10, 500)


STATES = st.sampled_from(["passed", "undecided", "failed", "inconclusive", "not measured", "look", "waived"])
TRIALS = st.fixed_dictionaries(
    {"step": st.integers(0, 3), "held": st.booleans(), "asked": st.booleans(), "extended": st.booleans()},
    optional={"inconclusive": st.just("too few")},
)
FACTS = st.fixed_dictionaries(
    {
        "shared": st.integers(0, 60_000),
        "answered": st.integers(0, 900),
        "newest": st.none()
        | st.timedeltas(timedelta(0), timedelta(hours=40)).map(lambda after: BEGAN + after),
        "complete": st.booleans(),
    }
)
LOOKS = st.timedeltas(timedelta(0), timedelta(hours=40)).map(lambda after: BEGAN + after)


@given(st.lists(STATES, min_size=1, max_size=4), TRIALS, FACTS, LOOKS)
def test_only_passed_checks_take_a_rollout_on_and_a_failed_one_always_out(states, changed, given_facts, now):
    trial = Trial(release="b" * 64, champion="a" * 64, plan=Plan(), began=BEGAN, since=BEGAN, **changed)
    found = facts(*map(check, states), **given_facts)
    decision = decide(trial, found, now)
    assert (decision.turn == "rollback") == ("failed" in states)
    assert decision == decide(trial, found, now)
    assert decision.says
    if decision.turn in ("step", "promote"):
        assert set(states) <= {"passed", "not measured", "waived"}
        assert (found.complete, trial.held, trial.inconclusive) == (True, False, None)
        assert now - trial.since >= timedelta(minutes=10)
        assert not trial.step or found.answered >= 500
        assert now - max(BEGAN, found.newest or BEGAN) < timedelta(hours=1)
        assert (decision.turn == "promote") == (trial.step == 3)
    if decision.turn == "inconclusive":
        assert trial.inconclusive is None
        assert found.complete


@given(st.lists(STATES, min_size=1, max_size=4), TRIALS, FACTS, LOOKS)
def test_no_later_look_at_the_same_facts_promotes_for_its_time_alone(states, changed, given_facts, now):
    trial = Trial(release="b" * 64, champion="a" * 64, plan=Plan(), began=BEGAN, since=BEGAN, **changed)
    found = facts(*map(check, states), **given_facts)
    open_checks = set(states) & {"undecided", "look", "inconclusive", "failed"}
    for after in (timedelta(0), timedelta(hours=3), timedelta(days=400)):
        if open_checks:
            assert decide(trial, found, now + after).turn not in ("step", "promote")
    assert decide(trial, found, BEGAN + timedelta(days=400)).turn in ("wait", "inconclusive", "rollback")


def test_what_a_person_let_go_on_is_not_asked_again_in_shadow_and_takes_no_step(trial):
    doubtful = facts(check("inconclusive", low=0.05, reason="only odd shows it"))
    assert decide(trial, doubtful, SOON).turn == "inconclusive"
    assert decide(at(trial, asked=True), doubtful, LATER).turn == "wait"
    assert decide(at(trial, asked=True, step=1), doubtful, SOON).turn == "inconclusive"


def test_a_prefix_that_is_read_again_takes_nothing_back(trial):
    doubtful = facts(check("inconclusive", low=0.05), complete=False)
    assert decide(at(trial, step=2), doubtful, LATER).turn == "wait"


def test_a_person_may_hold_what_has_passed_for_days(trial):
    days = BEGAN + timedelta(days=3)
    passed = facts(check("passed"), newest=days, answered=900)
    assert decide(at(trial, step=2, held=True), passed, days).says == "A person holds it at this step."
    still = facts(check("undecided"), newest=days)
    assert decide(at(trial, step=2, held=True), still, days).turn == "inconclusive"


@pytest.fixture
def evaluated(make_evaluation):
    """Makes the evaluation of a release that learnt gan, by its negative flips: what is called what."""

    def make(*flips, unknown_after=4):
        made = make_evaluation(("real", "blend", "gan"), "a" * 64, ("real", "blend"))
        assert made.before is not None
        confused = {"real": {"real": 200, "unknown": 4, "blend": 6}, "blend": {"blend": 50, "real": 2}}
        before = made.before.model_copy(update={"confusion": confused})
        real = {**confused["real"], "unknown": unknown_after}
        after = made.after.model_copy(update={"confusion": {**confused, "real": real}})
        lost = tuple(
            Flip(exemplar=f"x{number}", family=what, before=what, after=called)
            for what, called, count in flips
            for number in range(count)
        )
        found = Flips(items=262, lost=lost, won=0)
        return made.model_copy(update={"before": before, "after": after, "flips": found, "new": ("gan",)})

    return make


def by_check(evaluation):
    return {each.check: each for each in expected_of(evaluation)}


def test_each_check_has_its_expected_share(evaluated):
    expected = by_check(
        evaluated(
            ("real", "unknown", 1),
            ("real", "blend", 1),
            ("real", "gan", 2),
            ("blend", "real", 1),
            unknown_after=5,
        )
    )
    assert (expected[REALS_LOST].counted, expected[REALS_LOST].items) == (2, 198)
    assert expected[REALS_LOST].share == pytest.approx(2 / 198)
    assert expected[REAL_TO_NEW].share == pytest.approx(2 / 200)
    assert (expected[family_check("blend")].share, family_check("gan") in expected) == (1 / 50, False)
    assert expected[UNKNOWN_MORE].share == pytest.approx(1 / 210)
    assert not any(each.beyond for each in expected.values())
    assert expected["over twice as slow, net"].share is None


def test_a_share_over_its_bound_is_said_and_never_passes(evaluated):
    expected = by_check(evaluated(("real", "unknown", 9), ("real", "gan", 3), ("blend", "real", 8)))
    over = {name for name, each in expected.items() if each.beyond}
    assert over == {REALS_LOST, REAL_TO_NEW, family_check("blend")}
    assert [expected[name].units for name in (REALS_LOST, REAL_TO_NEW, family_check("blend"))] == [None] * 3
    assert expected[REAL_TO_NEW].asks
    assert not any(each.never for each in expected.values())
    assert Expected(check="a", counted=3, items=100, share=0.03, tolerated=0.03, units=None).never


def test_an_evaluation_that_does_not_say_expects_nothing(make_evaluation):
    assert expected_of(make_evaluation()) == ()
    assert expected_of(make_evaluation(("real", "blend"), "a" * 64, ("real", "blend"))) == ()


@given(st.sampled_from([0.005, 0.03, 0.05, 0.1]), st.floats(-0.02, 0.2).map(lambda share: round(share, 3)))
def test_the_fewer_losses_the_sooner_it_passes_and_from_its_bound_on_never(bound, share):
    many, fewest = bets_to_pass(bound, share), bets_to_pass(bound, 0.0)
    assert fewest == zeros(bound)
    assert many is None or (many <= fewest) == (share <= 0)
    assert share < bound or many is None


def zeros(bound):
    """So many units without any loss pass."""
    bets, units = Bets(np.array([bound])), 0
    while bets.log_below[0] < LOG_20:
        bets.bet_below(0.0)
        units += 1
    return units

"""What a rollout does next, by where it stands and what its checks show. Pure, and the same however often."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from deploy.rollout_records import Check, Trial
from deploy.rollouts.checks import NOT_ALONE

MOST_TIME = timedelta(hours=24)
MOST_SHARED = 50_000
"""Of shared items without all checks passed: what has not shown by then needs a person."""
WITHOUT_ANY = timedelta(hours=1)
_HOLD_UP = ("undecided", "look", "inconclusive")

Turn = Literal["wait", "step", "promote", "rollback", "inconclusive"]


@dataclass(frozen=True)
class RolloutFacts:
    """What was read so far. All counts are since the rollout's step, or its last extension, began."""

    checks: Sequence[Check]
    shared: int
    answered: int
    newest: datetime | None
    """when the newest comparison was written"""
    complete: bool
    """all comparisons that there are have been read"""


@dataclass(frozen=True)
class Decision:
    """What is to be done, and why, in one sentence."""

    turn: Turn
    says: str


def decide(trial: Trial, facts: RolloutFacts, now: datetime) -> Decision:
    """The next turn of a rollout. Failing comes before everything; nothing passes for want of data."""
    if failed := [check for check in facts.checks if check.state == "failed"]:
        return Decision("rollback", "; ".join(map(describe_check, failed)))
    if trial.inconclusive is not None:
        return Decision("wait", f"It is inconclusive and waits for a person: {trial.inconclusive}.")
    if not facts.complete:
        return Decision("wait", "It waits until its comparisons are read.")
    # What one source alone shows to be over the bound. In shadow nothing goes out, and a person who was asked
    # once has answered: then it is out of time later.
    doubtful = [item for item in facts.checks if item.state == "inconclusive" and item.low >= item.tolerated]
    if doubtful and (trial.step or not trial.asked):
        return Decision("inconclusive", "; ".join(map(describe_check, doubtful)))
    open_checks = [check for check in facts.checks if check.state in _HOLD_UP]
    # More items change nothing where no source has a history: a person is asked once the checks have decided.
    alone = [check.reason for check in open_checks if check.name == NOT_ALONE]
    if alone and not trial.asked and all(check.state == "inconclusive" for check in open_checks):
        return Decision("inconclusive", f"the checks rest on new names alone; {alone[0]}")
    waits = _waits(trial, facts, open_checks, now)
    if why := _out_of_time(trial, facts, open_checks, waits is not None, now):
        return Decision("inconclusive", why)
    if trial.held:
        return Decision("wait", "A person holds it at this step.")
    if waits is not None:
        return Decision("wait", waits)
    if trial.step == len(trial.plan.canary):
        return Decision("promote", "All checks passed at every step.")
    return Decision("step", "All checks passed.")


def describe_check(check: Check) -> str:
    """A check in words, with its figures."""
    share = "nothing" if check.share is None else f"{check.share:.1%}"
    counts = f"{check.counted} − {check.counter}" if check.counter else f"{check.counted}"
    interval = f"{check.low:.1%} to {check.high:.1%}"
    if check.changed:
        interval = f"at times under {check.high:.1%} and at times over {check.low:.1%}"
    words = (
        f"{check.name}: {share} ({counts} of {check.items} items, 95 % {interval}),"
        f" tolerated {check.tolerated:.1%}"
    )
    return words if check.reason is None else f"{words}; {check.reason}"


def _out_of_time(
    trial: Trial, facts: RolloutFacts, open_checks: Sequence[Check], waits: bool, now: datetime
) -> str | None:
    if now - max(trial.since, facts.newest or trial.since) >= WITHOUT_ANY:
        return "no item was scored by both for an hour"
    names = ", ".join(check.name for check in open_checks) or "the answers that it needs"
    if waits and now - trial.since >= MOST_TIME:
        return f"24 hours did not decide {names}"
    if open_checks and facts.shared >= MOST_SHARED:
        return f"{facts.shared:,} shared items did not decide {names}"
    return None


def _waits(trial: Trial, facts: RolloutFacts, open_checks: Sequence[Check], now: datetime) -> str | None:
    """What it waits for, in one sentence; None: for nothing."""
    if looks := [check for check in open_checks if check.state == "look"]:
        return f"It needs a person's labels: {describe_check(looks[0])}."
    if open_checks:
        names = (item.name + (f" ({item.reason})" if item.reason else "") for item in open_checks)
        return f"It waits for evidence on {', '.join(names)}."
    if (until := trial.since + timedelta(minutes=trial.plan.minutes)) > now:
        return f"All checks passed; this step lasts until {until:%H:%M:%S} UTC."
    if trial.step and facts.answered < trial.plan.answers:
        return f"All checks passed; it gave {facts.answered} of {trial.plan.answers} answers of this step."
    return None

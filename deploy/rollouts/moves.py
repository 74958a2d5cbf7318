"""A rollout's next step by its checks, and the moves by which it or a person takes it. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from deploy.release_records import Action, Release
from deploy.releases.approval import go_live
from deploy.releases.evidence import Evidence, require_servable
from deploy.releases.four_eyes import ApprovalError, Terms, own_part
from deploy.releases.ledger import Event, Move
from deploy.releases.standing import LedgerState, next_state, replay
from deploy.rollout_records import Check, Trial, Turn, Waive
from deploy.rollouts.checks import NOT_ALONE, waivable

MOST_TIME = timedelta(hours=24)
MOST_SHARED = 50_000
"""Of shared items without all checks passed: what has not shown by then needs a person."""
WITHOUT_ANY = timedelta(hours=1)
_HOLD_UP = ("undecided", "look", "inconclusive")

NextTurn = Literal["wait", "step", "promote", "rollback", "inconclusive"]


@dataclass(frozen=True)
class RolloutFacts:
    """The facts read so far. All counts are since the rollout's step, or its last extension, began."""

    checks: Sequence[Check]
    shared: int
    answered: int
    newest: datetime | None
    """when the newest comparison was written"""
    complete: bool
    """all comparisons that there are have been read"""


@dataclass(frozen=True)
class Decision:
    """The next move, and its reason in one sentence."""

    turn: NextTurn
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
    if check.has_changed:
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
    """The condition that it waits for, in one sentence; None: there is none."""
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


_ENDS = ("promote", "rollback", "expire")
History = Sequence[Event]


@dataclass(frozen=True)
class PastRollout:
    """A rollout: the event that began it, and the one that ended it; None while it goes on."""

    began: Event
    ended: Event | None


def past_rollouts(history: History) -> Iterator[PastRollout]:
    """Yield the rollouts of a ledger, the newest first."""
    ends: dict[str, Event] = {}
    for event in reversed(history):
        if event.move.action in _ENDS:
            ends[event.move.digest] = event  # the first after its beginning is the last that is met here
        elif event.move.action == "begin":
            yield PastRollout(event, ends.pop(event.move.digest, None))


ROLLOUT = "rollout"
"""Who moves a release by the evidence."""


def by_person(
    history: History,
    digest: str,
    action: Action,
    reason: str | None,
    actor: str,
    stored: Callable[[str], Evidence],
) -> list[Move]:
    """The move by which a person holds it, lets it go on, takes it back to shadow or gives it more time.

    stored: what lies in the store of artifacts, by digest. Raises ApprovalError, EvidenceError, StoreError.
    """
    _, trial, release = on_trial(history, digest)
    next_state(release.state, action)
    if (action == "hold" and trial.held) or (action == "resume" and not trial.held):
        raise ApprovalError("a person holds it already" if trial.held else "nobody holds it")
    if action == "extend" and trial.inconclusive is None:
        raise ApprovalError("it is not inconclusive: it needs no more time")
    if action == "extend" and trial.extended:
        raise ApprovalError("it was given more time once: label disagreements, waive a check or roll it back")
    if action in ("resume", "extend"):
        require_servable(stored(digest), digest, release.candidate.evaluation_digest)
    return [_move(release, action, reason, actor)]


def waive(history: History, waiver: Waive, actor: str, terms: Terms) -> list[Move]:
    """The move by which an approver takes a check away, or leaves a source out.

    Raises ApprovalError, where they may not approve the release by the terms of four eyes either.
    """
    standing, trial, release = on_trial(history, waiver.digest)
    names, name = waivable(standing.releases[trial.champion].candidate.classes[1:]), waiver.check
    if not waiver.of_source and name not in names:
        raise ApprovalError(f"{name!r} is no check; they are {', '.join(map(repr, names))}")
    if (before := (trial.without if waiver.of_source else trial.waived).get(name)) is not None:
        raise ApprovalError(f"{name!r} was {'left out' if waiver.of_source else 'waived'} before: {before}")
    if problem := own_part(release, actor, terms):
        raise ApprovalError(f"{problem}: another person must waive its check")
    turn = Turn(source=name) if waiver.of_source else Turn(check=name)
    return [_move(release, "waive", waiver.reason, actor, turn)]


def judge(history: History, digest: str, labels: Mapping[str, str], actor: str, terms: Terms) -> list[Move]:
    """The move by which a person labels shared items.

    Raises ApprovalError, where they may not approve the release by the terms of four eyes either.
    """
    _, _, release = on_trial(history, digest)
    if problem := own_part(release, actor, terms):
        raise ApprovalError(f"{problem}: another person must judge the disagreements")
    return [_move(release, "judge", None, actor, Turn(labels=labels))]


def step_on(history: History, trial: Trial, checks: tuple[Check, ...], evidence: Evidence) -> list[Move]:
    """Moves that take a rollout a step on, or live after its last one; none where it moved meanwhile.

    evidence is what lies in the store now: one byte that was not approved stops it. Raises ApprovalError and
    EvidenceError.
    """
    standing = replay(history)
    if standing.trial != trial:
        return []
    release = standing.releases[trial.release]
    require_servable(evidence, release.digest, release.candidate.evaluation_digest)
    if trial.step == len(trial.plan.canary):
        return go_live(standing, release, ROLLOUT, Turn(checks=checks))
    return [_move(release, "step", None, ROLLOUT, Turn(step=trial.step + 1, checks=checks))]


def inconclusive(history: History, trial: Trial, checks: tuple[Check, ...], reason: str) -> list[Move]:
    """The move that takes a rollout back to shadow, to wait for a person; none where it moved meanwhile."""
    standing = replay(history)
    if standing.trial != trial:
        return []
    return [_move(standing.releases[trial.release], "inconclusive", reason, ROLLOUT, Turn(checks=checks))]


def on_trial(history: History, digest: str) -> tuple[LedgerState, Trial, Release]:
    """The standing, the trial and the release on trial. Raises ApprovalError where that is another."""
    standing = replay(history)
    trial = standing.trial
    if trial is None or trial.release != digest:
        trialled = "no release" if trial is None else f"release {trial.release[:12]}"
        raise ApprovalError(f"release {digest[:12]} is not on trial: {trialled} is; look again")
    return standing, trial, standing.releases[digest]


def _move(release: Release, action: Action, reason: str | None, actor: str, turn: Turn | None = None) -> Move:
    return Move(actor, action, release.digest, release.candidate.evaluation_digest, reason, rollout=turn)

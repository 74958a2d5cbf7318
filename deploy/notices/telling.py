"""The notices to webhooks, and the record's acts on pending decisions: each once. Pure."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from deploy.notice_records import Notice, NoticeData
from deploy.record.chain import Act
from deploy.release_records import STATES
from deploy.release_records import WAITING as UNDECIDED
from deploy.releases.standing import LedgerState
from deploy.rollout_records import Plan, RolloutView, Turn
from deploy.rollouts.moves import describe_check
from memory.purge import PURGE
from memory.shift.alarms import SHIFT
from memory.shift.drift import DRIFT

WAITING, TEST = "waiting", "test notices"
"""Acts of this package: something waits for a person; somebody tries the webhooks."""

TYPES: Mapping[str, str] = {
    "propose": "io.forgewatch.release.proposed",
    WAITING: "io.forgewatch.release.waiting",
    "approve": "io.forgewatch.release.approved",
    "begin": "io.forgewatch.release.step",
    "step": "io.forgewatch.release.step",
    "back to shadow": "io.forgewatch.release.step",
    "promote": "io.forgewatch.release.step",
    "inconclusive": "io.forgewatch.release.inconclusive",
    "rollback": "io.forgewatch.release.rolled-back",
    SHIFT: "io.forgewatch.source.shift",
    DRIFT: "io.forgewatch.source.drift",
    PURGE: "io.forgewatch.source.purge",
    TEST: "io.forgewatch.notices.test",
}
"""The CloudEvents' type of each act that webhooks are told of."""

_SAYS = {
    "propose": "release {release} is proposed by {by}: it waits for an operator",
    WAITING: "release {release} waits for a person: {reason}",
    "approve": "release {release} is approved by {by}",
    "begin": "release {release} is in shadow: {by} began its rollout",
    "step": "release {release} answers {step} of the items: {by} took it a step on",
    "back to shadow": "release {release} is back in shadow: {by} took its answers back: {reason}",
    "promote": "release {release} is live: {by} took it there",
    "inconclusive": "the rollout of release {release} is inconclusive and waits for a person: {reason}",
    "rollback": "release {release} is rolled back by {by}: {reason}",
    SHIFT: "items of {source} that were called real have shifted: its suspects are first among the clusters",
    DRIFT: "verdicts on {source} have drifted: {statistic} is {direction} than before",
    PURGE: "{source} is purged from the memory by {by}",
    TEST: "{by} tries the webhooks: this one takes notices",
}
_LONGEST = 1000


@dataclass(frozen=True)
class ActMessage:
    """An act of the record that webhooks are told of.

    plan: of a step, the one that its rollout began with.
    """

    sequence: int
    at: datetime
    actor: str
    action: str
    subject: str
    details: Mapping[str, Any]
    id: str
    plan: Plan | None = None


def notice_of(act: ActMessage, page_url: str | None = None) -> Notice:
    """The notice of an act, the same however often it is made. page_url: of the page."""
    turn = Turn.model_validate(act.details.get("rollout") or {})
    reason, step = act.details.get("reason"), _step(act, turn)
    details = {
        "release": act.subject[:12],
        "source": _source(act),
        "by": act.actor,
        "step": step,
        "reason": reason,
    }
    says = _SAYS[act.action].format(**{**act.details, **details})
    data = NoticeData(
        says=says[:_LONGEST],
        by=act.actor,
        act=act.sequence,
        link=page_url and f"{page_url.rstrip('/')}{_view(act)}",
        reason=reason,
        step=step,
        checks=turn.checks,
        accepted=act.details.get("accepted"),
        details=act.details if act.action in (SHIFT, DRIFT, PURGE) else None,
    )
    return Notice(id=act.id, type=TYPES[act.action], time=act.at, subject=act.subject, data=data)


def _view(act: ActMessage) -> str:
    match act.action:
        case action if action == SHIFT:
            return "/page/clusters"
        case action if action in (DRIFT, PURGE):
            source = act.details.get("source", act.subject)
            return "/page/sources" if source is None else f"/page/source?name={quote(source, safe='')}"
        case action if action == TEST:
            return "/"
    return f"/page/releases/{act.subject}"


def _source(act: ActMessage) -> str:
    return "all sources" if act.details.get("source", act.subject) is None else f"source {act.subject!r}"


def _step(act: ActMessage, turn: Turn) -> str | None:
    match act.action:
        case "begin" | "back to shadow":
            return "shadow"
        case "promote":
            return "live"
        case "step" if act.plan is not None and turn.step is not None:
            return f"{100 * act.plan.shares(turn.step)[1]:g} %"
        case _:
            return None


AFTER = timedelta(hours=24)
"""Whoever was told of a proposal, or of an inconclusive rollout, has a day before they are told again."""
ACTOR = "deploy server"


def pending_notice(ledger: str, standing: LedgerState, view: RolloutView, now: datetime) -> Iterator[Act]:
    """The acts on decisions that are pending now. Each has the same origin whenever it is made.

    ledger is its id. A release waits where it has been proposed, or approved, for a day; a rollout where it
    has been inconclusive for one, or, at once, where a check needs a person's labels.
    """
    for release in standing.releases.values():
        if release.state in UNDECIDED and now - release.since >= AFTER:
            yield _act(
                ledger, release.digest, f"it is {release.state}. {STATES[release.state]}", release.since
            )
    if view.trial is None:
        return
    digest, since = view.trial.release, view.trial.since
    if view.trial.inconclusive is not None:
        if now - since >= AFTER:
            yield _act(ledger, digest, f"its rollout is inconclusive: {view.trial.inconclusive}", since)
        return
    for check in view.checks:
        if check.state == "look":
            why = f"it needs a person's labels: {describe_check(check)}"
            yield _act(ledger, digest, why, view.trial.began, check.name)


def _act(ledger: str, digest: str, reason: str, since: datetime, check: str = "") -> Act:
    origin = hashlib.sha256(f"{WAITING} {ledger} {digest} {since.isoformat()} {check}".encode()).hexdigest()
    return Act(ACTOR, WAITING, digest, {"reason": reason, "since": since.isoformat()}, origin=origin[:32])

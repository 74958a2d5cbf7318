"""What waits for a person, as acts of the record, by which webhooks are told of it: each thing once. Pure."""

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta

from deploy.notices.telling import WAITING as ACTION
from deploy.record.acts import Act
from deploy.release_records import STATES, WAITING
from deploy.releases.standing import LedgerState
from deploy.rollout_records import RolloutView
from deploy.rollouts.decide import describe_check

AFTER = timedelta(hours=24)
"""Whoever was told of a proposal, or of an inconclusive rollout, has a day before they are told again."""
ACTOR = "deploy server"


def pending_notice(ledger: str, standing: LedgerState, view: RolloutView, now: datetime) -> Iterator[Act]:
    """The acts that say what waits for a person now. Each has the same origin whenever it is asked for.

    ledger is its id. A release waits where it has been proposed, or approved, for a day; a rollout where it
    has been inconclusive for one, or, at once, where a check needs a person's labels.
    """
    for release in standing.releases.values():
        if release.state in WAITING and now - release.since >= AFTER:
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
    origin = hashlib.sha256(f"{ACTION} {ledger} {digest} {since.isoformat()} {check}".encode()).hexdigest()
    return Act(ACTOR, ACTION, digest, {"reason": reason, "since": since.isoformat()}, origin=origin[:32])

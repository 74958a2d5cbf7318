"""The rules of a release's life, as pure functions over the ledger's events.

The table of deploy.releases.standing says which state follows; a rule can only refuse a move. An approval
binds the digests of artifact, evaluation and training snapshot, computed anew from the bytes that lie on the
disk at that moment, and the ledger up to the proposal. To go live is a move of its own, which an approved
release alone can make.
"""

from collections.abc import Sequence
from datetime import datetime

from deploy.release_records import Approve, Release, TakeOut
from deploy.releases import four_eyes
from deploy.releases.evidence import Evidence, require_gates, require_same_bytes, require_servable
from deploy.releases.four_eyes import ApprovalError, Terms
from deploy.releases.ledger import Event, Move
from deploy.releases.standing import TRANSITIONS, LedgerState, apply, next_state, replay
from deploy.rollout_records import Check, Plan, Turn
from updater.records import Candidate
from updater.settings import UpdaterSettings


class UnknownReleaseError(ApprovalError):
    """No release of this digest was ever proposed."""


def propose(
    history: Sequence[Event],
    candidate: Candidate,
    evidence: Evidence,
    bounds: UpdaterSettings,
    actor: str,
    requested_by: str | None = None,
) -> list[Move]:
    """Moves that enter a candidate; none where it is already there (so a retry does no harm).

    requested_by: the person who asked for its update; None where nobody did.

    Raises ApprovalError where a person already said no to it or where it was not measured against what is
    live, and EvidenceError where the stored bytes or its gates are not the candidate's. A gate that does not
    hold makes it a proposal with findings. A release that was rolled back may be proposed again: a rollback
    can be a mistake, too.
    """
    standing = replay(history)
    known = standing.releases.get(candidate.digest)
    if known is not None:
        if known.state == "rejected":
            raise ApprovalError(f"{known.actor} rejected it: {known.reason}")
        if known.candidate != candidate:
            raise ApprovalError("this digest was proposed before with other evidence")
        if (known.state, "propose") not in TRANSITIONS:
            return []
    _require_parent_live(candidate, standing.live)
    require_gates(candidate, evidence, standing.live, bounds)
    about = (candidate.digest, candidate.evaluation_digest)
    return [Move(actor, "propose", *about, candidate=candidate, requested_by=requested_by)]


def approve(
    history: Sequence[Event],
    digest: str,
    wanted: Approve,
    evidence: Evidence,
    bounds: UpdaterSettings,
    actor: str,
    labelled: int,
    terms: Terms,
    now: datetime,
    plan: Plan | None = None,
) -> list[Move]:
    """Moves by which a person approves a release that waits; none where they did and it counts still.

    wanted: what they looked at, why they take each finding, and whether it goes live too once enough people
    approved. labelled: how many labels of theirs it learnt from. plan: by which steps; None: by the terms'.
    Raises UnknownReleaseError, ApprovalError
    where it does not wait, they may not approve it, its parent is not live or a finding has no reason, and
    EvidenceError where one byte or gate differs from what was proposed.
    """
    standing = replay(history)
    release = find(history, digest)
    next_state(release.state, "approve")
    if wanted.evaluation_digest != release.candidate.evaluation_digest:
        raise ApprovalError("the evaluation that you approve is not the one that was proposed")
    if wanted.ledger not in (None, release.ledger):
        raise ApprovalError("it was proposed anew since you looked at it: look again")
    _require_parent_live(release.candidate, standing.live)
    require_gates(release.candidate, evidence, standing.live, bounds)
    bound = four_eyes.bind(release, evidence, actor, labelled, terms, now, plan or terms.plan)
    moves = []
    if not any(four_eyes.same_person(actor, given.actor) for given in four_eyes.counting(release, now)):
        four_eyes.require_reasons(release.candidate, wanted.accept)
        about = (digest, wanted.evaluation_digest)
        comment, accepted = wanted.comment or None, wanted.accept or None
        moves.append(Move(actor, "approve", *about, comment, accepted=accepted, bound=bound))
    after = apply(standing, [Event(len(history) + 1, now, move, "") for move in moves])
    if wanted.promote and not four_eyes.lacking(after.releases[digest], terms, now):
        moves += _promote(after, after.releases[digest], evidence, actor, terms, now)
    return moves


def promote(
    history: Sequence[Event], digest: str, evidence: Evidence, actor: str, terms: Terms, now: datetime
) -> list[Move]:
    """Moves by which an approved release goes live by its plan, or begins to.

    Raises UnknownReleaseError, ApprovalError where it is not approved, too few approvals count, they name
    several plans, its parent is not live or another release is on trial, and EvidenceError where one byte
    differs from what was approved.
    """
    release = find(history, digest)
    if (release.state, "begin") not in TRANSITIONS:
        raise ApprovalError(f"it is {release.state}; promote is for a release that is approved")
    return _promote(replay(history), release, evidence, actor, terms, now)


def _promote(
    standing: LedgerState, release: Release, evidence: Evidence, actor: str, terms: Terms, now: datetime
) -> list[Move]:
    digest, evaluation_digest = release.digest, release.candidate.evaluation_digest
    _require_parent_live(release.candidate, standing.live)
    require_servable(evidence, digest, evaluation_digest)
    plan = four_eyes.require_approved(release, evidence, terms, now)
    if standing.trial is not None:
        raise ApprovalError(f"release {standing.trial.release[:12]} is on trial: one rollout at a time")
    if plan.now or standing.live is None:
        return go_live(standing, release, actor)
    return [Move(actor, "begin", digest, evaluation_digest, rollout=Turn(plan=plan))]


def go_live(standing: LedgerState, release: Release, actor: str, turn: Turn | None = None) -> list[Move]:
    """Moves that make a release the live one, and let expire those measured against another."""
    about = (release.digest, release.candidate.evaluation_digest)
    moves = [Move(actor, "promote", *about, rollout=turn)]
    return moves + expiries(standing, leaving=release.digest, live=release.digest, actor=actor)


def reject(history: Sequence[Event], digest: str, reason: str, actor: str) -> list[Move]:
    """Moves that refuse a proposed or approved release for good.

    Raises UnknownReleaseError and ApprovalError.
    """
    release = find(history, digest)
    next_state(release.state, "reject")
    return [Move(actor, "reject", digest, release.candidate.evaluation_digest, reason)]


def to_take_out(history: Sequence[Event], digest: str | None) -> tuple[Release, Release]:
    """The release that a rollback takes out, and the one that answers everything then.

    It is the one on trial, and the live one where none is; digest says which of both is meant. Raises
    ApprovalError.
    """
    standing = replay(history)
    live = standing.live
    if standing.trial is not None and digest in (None, standing.trial.release):
        return standing.releases[standing.trial.release], standing.releases[standing.trial.champion]
    if live is not None and digest not in (None, live.digest):
        raise ApprovalError(
            f"release {digest[:12]} neither answers nor is on trial: {live.digest[:12]} is live; look again"
        )
    if live is None or standing.previous is None:
        raise ApprovalError("there is no earlier release to roll back to")
    return live, standing.releases[standing.previous]


def rollback(
    history: Sequence[Event],
    wanted: TakeOut,
    evidence: Evidence,
    actor: str,
    checks: tuple[Check, ...] | None = None,
) -> list[Move]:
    """Moves that take a release out of service, so that the one before it answers everything.

    evidence is of the release that answers then: it was approved byte by byte, and so it returns. checks:
    what a rollback by the evidence rests on. Raises ApprovalError and EvidenceError.
    """
    out, back = to_take_out(history, wanted.digest)
    standing = replay(history)
    # The champion of a trial is live already: a challenger is taken out beside it whatever it was made of.
    require = require_servable if standing.live == out else require_same_bytes
    require(evidence, back.digest, back.candidate.evaluation_digest)
    turn = Turn(retract=wanted.retract, checks=checks)
    about = (out.digest, out.candidate.evaluation_digest)
    moves = [Move(actor, "rollback", *about, wanted.reason, rollout=turn)]
    return moves + expiries(standing, leaving=out.digest, live=back.digest, actor=actor)


def find(history: Sequence[Event], digest: str) -> Release:
    """The release of this digest; raises UnknownReleaseError."""
    release = replay(history).releases.get(digest)
    if release is None:
        raise UnknownReleaseError(f"no release {digest} was proposed")
    return release


def expiries(standing: LedgerState, leaving: str, live: str, actor: str) -> list[Move]:
    """Moves of all that waits and was measured against another release than the one that is live next."""
    return [
        Move(actor, "expire", release.digest, release.candidate.evaluation_digest, f"{live[:12]} is live")
        for release in standing.releases.values()
        if (release.state, "expire") in TRANSITIONS
        and release.digest != leaving
        and release.candidate.parent != live
    ]


def _require_parent_live(candidate: Candidate, live: Release | None) -> None:
    """Else the live release's training would be undone: the candidate was never measured on it."""
    now = live.digest if live else None
    if candidate.parent != now:
        then, now = (digest[:12] if digest else "nothing" for digest in (candidate.parent, now))
        raise ApprovalError(
            f"it was trained from and compared with {then}, but {now} is live: "
            "ask for a new update (`forgewatch update`), which begins at the live release"
        )

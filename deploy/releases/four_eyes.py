"""Who may approve a release, how many must, the digests that an approval binds, and its expiry.

Four eyes: whoever asked for a release's update, or proposed it themselves, approves nothing of it. Nor does
whoever gave them a token, or got one from them, over any number of hands: they may be one person.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import combinations
from typing import Any

from deploy.access.roles import givers_of, identity_of
from deploy.release_records import Approval, Bound, Release
from deploy.releases.evidence import Evidence
from deploy.releases.ledger import Event
from deploy.rollout_records import Plan
from updater.gate_records import said_of_findings
from updater.records import Candidate


class ApprovalError(Exception):
    """The rules forbid this move; fatal for the request, nothing was written."""


@dataclass(frozen=True)
class Terms:
    """On which terms releases are approved here.

    four_eyes: off on loopback without tokens alone, where nobody is told from another. needed: how many
    people must approve. labellers: whether those may from whose labels it learnt. lasts: how long an
    approval counts. given: of each token that ever was, who gave it and to whom.
    """

    four_eyes: bool
    needed: int
    labellers: bool
    lasts: timedelta
    plan: Plan = field(default_factory=Plan)
    given: tuple[tuple[str, str], ...] = ()


def consent(before: Release | None, event: Event) -> Mapping[str, Any]:
    """A release's approvals after an event which moves it: fields of Release."""
    move = event.move
    if before is None or move.action == "propose":
        return {"requested_by": move.requested_by, "proposed_by": move.actor, "ledger": event.hash}
    approvals = before.approvals
    # Of another release's move it retires, or comes back; what was approved of it stays.
    if move.digest == before.digest and move.action in ("expire", "rollback"):
        approvals = ()
    if move.action == "approve" and move.bound is not None:
        of = {"artifact": move.digest, "evaluation": move.evaluation_digest}
        approvals = (*approvals, Approval(**dict(move.bound), **of, actor=move.actor, at=event.at))
    kept = ("requested_by", "proposed_by", "ledger")
    return {name: getattr(before, name) for name in kept} | {"approvals": approvals}


def require_reasons(candidate: Candidate, accepted: Mapping[str, str]) -> None:
    """Raise ApprovalError unless an approval says of each finding, and of nothing else, why it is taken."""
    findings, name = {gate.name: gate for gate in candidate.findings}, candidate.digest[:12]
    if other := [given for given in accepted if given not in findings]:
        facts = f"its findings are {', '.join(map(repr, findings))}" if findings else "it has no findings"
        raise ApprovalError(f"{other[0]!r} is no finding of release {name}: {facts}")
    if silent := [gate for given, gate in findings.items() if not accepted.get(given, "").strip()]:
        raise ApprovalError(
            f"release {name} has findings that no reason was given for: {said_of_findings(silent)}. Mend"
            f' them, or take each with --accept "{silent[0].name}=WHY"'
            f" (`forgewatch release {name}` shows them)"
        )


def bind(
    release: Release, evidence: Evidence, actor: str, labelled: int, terms: Terms, now: datetime, plan: Plan
) -> Bound:
    """The content of this person's approval of a release. Raises ApprovalError where it may not be theirs.

    labelled: how many labels of theirs the release learnt from.
    """
    if problem := objection(release, actor, labelled, terms, now):
        raise ApprovalError(problem)
    return Bound(
        ledger=release.ledger,
        snapshot=evidence.snapshot,
        expires_at=now + terms.lasts,
        labelled=labelled,
        plan=plan,
        token_by=_token_by(release, actor, terms),
    )


def objection(release: Release, actor: str, labelled: int, terms: Terms, now: datetime) -> str | None:
    """Why this person may not approve this release, in one line; None: they may."""
    approved = counting(release, now) if terms.needed > 1 else ()
    if problem := own_part(release, actor, terms, approved):
        return f"{problem}: another person must approve it"
    if labelled and not terms.labellers:
        name = release.digest[:12]
        return f"release {name} learnt from labels of {actor}, whom a setting keeps from approving it"
    return None


def own_part(release: Release, actor: str, terms: Terms, approved: Sequence[Approval] = ()) -> str | None:
    """The part that this person, or one tied to them by tokens, has in a release; None: none.

    approved: approvals of which none may be another name of theirs.
    """
    if not terms.four_eyes:
        return None
    parts = [(release.requested_by, "asked for the update that made"), (release.proposed_by, "proposed")]
    parts += [(approval.actor, "approved") for approval in approved if not same_person(approval.actor, actor)]
    for name, did in parts:
        if name and (tie := tie_of(name, actor, terms.given)) is not None:
            return f"{name} {did} release {release.digest[:12]}{tie}"
    return None


def _token_by(release: Release, actor: str, terms: Terms) -> str | None:
    """Who stands above both this person and whoever asked for a release, by tokens: it may be one hand."""
    requester = release.requested_by or release.proposed_by
    return ", ".join(sorted(givers_of(actor, terms.given) & givers_of(requester, terms.given))) or None


def same_person(actor: str, other: str) -> bool:
    """Whether two names mean one person."""
    return identity_of(actor) == identity_of(other)


def tie_of(name: str, other: str, given: Collection[tuple[str, str]]) -> str | None:
    """Why two names may be one hand, as a sentence ends; empty of the same person, None of two people.

    given: of each token that ever was, who gave it and to whom.
    """
    for above, below in ((name, other), (other, name)):
        if identity_of(above) in givers_of(below, given):
            return f", and {below} has a token by way of {above}"
    return "" if same_person(name, other) else None


def by_one_hand(judges: Mapping[str, Sequence[str]], given: Collection[tuple[str, str]]) -> frozenset[str]:
    """Items that nobody judged but people of whom each has a tie with each other."""
    pairs = {id: combinations(names, 2) for id, names in judges.items()}
    return frozenset(id for id in pairs if all(tie_of(*pair, given) is not None for pair in pairs[id]))


def counting(release: Release, now: datetime) -> tuple[Approval, ...]:
    """The approvals of a release that count at this time, the last one of each person."""
    return tuple({identity_of(a.actor): a for a in release.approvals if now < a.expires_at}.values())


def lacking(release: Release, terms: Terms, now: datetime) -> int:
    """How many more approvals, each of another person, a release needs to go live."""
    return max(0, terms.needed - len(counting(release, now)))


def require_approved(release: Release, evidence: Evidence, terms: Terms, now: datetime) -> Plan:
    """Return the plan that enough people approved exactly these bytes by, and not too long ago.

    Raises ApprovalError.
    """
    stored = (release.ledger, evidence.digest, evidence.evaluation_digest, evidence.snapshot)
    given = [a for a in counting(release, now) if (a.ledger, a.artifact, a.evaluation, a.snapshot) == stored]
    if len(given) < terms.needed:
        over = sum(a.expires_at <= now for a in release.approvals)
        raise ApprovalError(
            f"release {release.digest[:12]} has {len(given)} of {terms.needed} approvals that count"
            + (f" ({over} expired)" if over else "")
            + ": `forgewatch approve` gives one"
        )
    plans = {str(plan): plan for plan in (a.plan or terms.plan for a in given[-terms.needed :])}
    if len(plans) > 1:
        names = " and ".join(sorted(plans))
        raise ApprovalError(f"its approvals name several plans ({names}): one of you approves again")
    (plan,) = plans.values()
    return plan

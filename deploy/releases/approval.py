"""The rules by which a release moves, as pure functions over the ledger's events.

proposed → approved → live → retired, or proposed → rejected; a rollback takes the live release
out and brings the one before it back. An approval names exactly two things, the artifact's digest
and its evaluation's digest, both computed anew from the bytes that lie on the disk at that moment.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from deploy.releases.ledger import Event, Move
from deploy.releases.records import Release, State
from detector.records import Rollout
from updater.records import Candidate


class ApprovalError(Exception):
    """The rules forbid this move; fatal for the request, nothing was written."""


class UnknownRelease(ApprovalError):  # noqa: N818 - it reads as what it says
    """No release of this digest was ever proposed."""


@dataclass(frozen=True)
class Evidence:
    """Digests of the bytes that lie in the artifact store now (SHA-256, hexadecimal)."""

    digest: str
    evaluation_digest: str


@dataclass(frozen=True)
class Standing:
    """Where every release stands.

    releases: by digest, in the order they were first proposed. line: digests that went live and
    were not rolled back, oldest first; the last one is live. turned: the sequence number of the
    last event that changed which one is live, 0 where none did.
    """

    releases: dict[str, Release] = field(default_factory=dict)
    line: tuple[str, ...] = ()
    turned: int = 0

    @property
    def live(self) -> Release | None:
        """The release that scores, or None before the first approval."""
        return self.releases[self.line[-1]] if self.line else None

    @property
    def previous(self) -> str | None:
        """Digest of the release that a rollback would bring back, or None."""
        return self.line[-2] if len(self.line) > 1 else None

    def rollout(self, ledger: str, epoch: int) -> Rollout | None:
        """What every worker is to serve by the ledger of this id and epoch; None before an approval."""
        if not self.line:
            return None
        return Rollout(
            ledger=ledger, epoch=epoch, sequence=self.turned, stable=self.line[-1], previous=self.previous
        )


def fold(events: Iterable[Event]) -> Standing:
    """The standing after these events, which are the ledger's in order."""
    releases: dict[str, Release] = {}
    line: tuple[str, ...] = ()
    turned = 0

    def enter(digest: str, state: State, event: Event) -> None:
        candidate = event.move.candidate or releases[digest].candidate
        releases[digest] = Release(
            digest=digest,
            state=state,
            candidate=candidate,
            since=event.at,
            actor=event.move.actor,
            reason=event.move.reason,
            sequence=event.sequence,
        )

    for event in events:
        digest = event.move.digest
        match event.move.action:
            case "propose":
                enter(digest, "proposed", event)
            case "approve":
                enter(digest, "approved", event)
            case "reject":
                enter(digest, "rejected", event)
            case "promote":
                if line:
                    enter(line[-1], "retired", event)
                enter(digest, "live", event)
                line, turned = (*line, digest), event.sequence
            case "rollback":
                enter(digest, "rolled back", event)
                line, turned = line[:-1], event.sequence
                enter(line[-1], "live", event)
    return Standing(releases, line, turned)


def propose(history: Sequence[Event], candidate: Candidate, evidence: Evidence, actor: str) -> list[Move]:
    """Moves that enter a candidate; none where it is already there (so a retry does no harm).

    Raises ApprovalError where a gate does not hold, where the stored bytes are not the ones that
    the candidate names, or where a person already said no to it. A release that was rolled back
    may be proposed again: a rollback can be a mistake, too.
    """
    missed = [gate.name for gate in candidate.gates if not gate.holds]
    if missed:
        raise ApprovalError(f"these gates do not hold: {', '.join(missed)}")
    _same_bytes(evidence, candidate.digest, candidate.evaluation_digest)
    known = fold(history).releases.get(candidate.digest)
    if known is not None and known.state == "rejected":
        raise ApprovalError(f"{known.actor} rejected it: {known.reason}")
    if known is not None and known.candidate != candidate:
        raise ApprovalError("this digest was proposed before with other evidence")
    if known is not None and known.state != "rolled back":
        return []
    return [Move(actor, "propose", candidate.digest, candidate.evaluation_digest, candidate=candidate)]


def approve(
    history: Sequence[Event], digest: str, evaluation_digest: str, evidence: Evidence, actor: str
) -> list[Move]:
    """Moves that approve a proposed release and take it live.

    evaluation_digest is the one that the operator looked at. Raises UnknownRelease, and
    ApprovalError where the release is not waiting or where one byte differs from what was proposed.
    """
    release = find(history, digest)
    if release.state != "proposed":
        raise ApprovalError(f"it is {release.state}, only a proposed release can be approved")
    if evaluation_digest != release.candidate.evaluation_digest:
        raise ApprovalError("the evaluation that you approve is not the one that was proposed")
    _same_bytes(evidence, release.digest, release.candidate.evaluation_digest)
    return [
        Move(actor, "approve", digest, evaluation_digest),
        Move(actor, "promote", digest, evaluation_digest),
    ]


def reject(history: Sequence[Event], digest: str, reason: str, actor: str) -> list[Move]:
    """Moves that refuse a proposed release for good; raises UnknownRelease, ApprovalError."""
    release = find(history, digest)
    if release.state != "proposed":
        raise ApprovalError(f"it is {release.state}, only a proposed release can be rejected")
    return [Move(actor, "reject", digest, release.candidate.evaluation_digest, reason)]


def rollback_target(history: Sequence[Event]) -> Release:
    """The release that a rollback would bring back; raises ApprovalError where there is none."""
    standing = fold(history)
    if len(standing.line) < 2:
        raise ApprovalError("there is no earlier release to roll back to")
    return standing.releases[standing.line[-2]]


def rollback(history: Sequence[Event], evidence: Evidence, reason: str, actor: str) -> list[Move]:
    """Moves that take the live release out and bring the one before it back.

    evidence is of the release that comes back: it was approved byte by byte, and so it returns.
    Raises ApprovalError.
    """
    target = rollback_target(history)
    _same_bytes(evidence, target.digest, target.candidate.evaluation_digest)
    live = fold(history).live
    assert live is not None
    return [Move(actor, "rollback", live.digest, live.candidate.evaluation_digest, reason)]


def find(history: Sequence[Event], digest: str) -> Release:
    """The release of this digest; raises UnknownRelease."""
    release = fold(history).releases.get(digest)
    if release is None:
        raise UnknownRelease(f"no release {digest} was proposed")
    return release


def _same_bytes(evidence: Evidence, digest: str, evaluation_digest: str) -> None:
    if evidence.digest != digest:
        raise ApprovalError(f"the stored artifact's bytes give {evidence.digest}, not {digest}")
    if evidence.evaluation_digest != evaluation_digest:
        raise ApprovalError(
            f"the stored evaluation's bytes give {evidence.evaluation_digest}, not {evaluation_digest}"
        )

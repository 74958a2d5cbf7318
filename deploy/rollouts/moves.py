"""What a person, or the evidence, does with the rollout that goes on: rules as pure functions."""

from collections.abc import Callable, Mapping, Sequence

from deploy.release_records import Action, Release
from deploy.releases.approval import go_live
from deploy.releases.evidence import Evidence, require_servable
from deploy.releases.four_eyes import ApprovalError, Terms, own_part
from deploy.releases.ledger import Event, Move
from deploy.releases.standing import LedgerState, next_state, replay
from deploy.rollout_records import Check, Trial, Turn, Waive
from deploy.rollouts.checks import waivable

ROLLOUT = "rollout"
"""Who moves a release by the evidence."""


def by_person(
    history: Sequence[Event],
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
        raise ApprovalError(
            "it was given more time once: label disagreements, waive a check, or roll it back"
        )
    if action in ("resume", "extend"):
        require_servable(stored(digest), digest, release.candidate.evaluation_digest)
    return [_move(release, action, reason, actor)]


def waive(history: Sequence[Event], waiver: Waive, actor: str, terms: Terms) -> list[Move]:
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


def judge(
    history: Sequence[Event], digest: str, labels: Mapping[str, str], actor: str, terms: Terms
) -> list[Move]:
    """The move by which a person says what shared items are.

    Raises ApprovalError, where they may not approve the release by the terms of four eyes either.
    """
    _, _, release = on_trial(history, digest)
    if problem := own_part(release, actor, terms):
        raise ApprovalError(f"{problem}: another person must judge the disagreements")
    return [_move(release, "judge", None, actor, Turn(labels=labels))]


def step_on(
    history: Sequence[Event], trial: Trial, checks: tuple[Check, ...], evidence: Evidence
) -> list[Move]:
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


def inconclusive(
    history: Sequence[Event], trial: Trial, checks: tuple[Check, ...], reason: str
) -> list[Move]:
    """The move that takes a rollout back to shadow, to wait for a person; none where it moved meanwhile."""
    standing = replay(history)
    if standing.trial != trial:
        return []
    return [_move(standing.releases[trial.release], "inconclusive", reason, ROLLOUT, Turn(checks=checks))]


def on_trial(history: Sequence[Event], digest: str) -> tuple[LedgerState, Trial, Release]:
    """The standing, the trial and the release on trial. Raises ApprovalError where that is another."""
    standing = replay(history)
    trial = standing.trial
    if trial is None or trial.release != digest:
        what = "no release" if trial is None else f"release {trial.release[:12]}"
        raise ApprovalError(f"release {digest[:12]} is not on trial: {what} is; look again")
    return standing, trial, standing.releases[digest]


def _move(release: Release, action: Action, reason: str | None, actor: str, turn: Turn | None = None) -> Move:
    return Move(actor, action, release.digest, release.candidate.evaluation_digest, reason, rollout=turn)

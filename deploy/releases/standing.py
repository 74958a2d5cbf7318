"""Where every release stands: the table of a release's life, and the fold of the ledger's events by it.

TRANSITIONS alone says which state follows; the rules of deploy.releases.approval can only refuse a move.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from deploy.release_records import ON_TRIAL, Action, Release, State
from deploy.releases import four_eyes, trial
from deploy.releases.four_eyes import ApprovalError
from deploy.releases.ledger import DamagedLedgerError, Event
from deploy.rollout_records import Trial
from detector.records import Retraction, Rollout

Consequence = Literal["propose with findings", "retire", "restore"]
"""What a move does besides: a proposal of which a gate does not hold is one with findings; promote retires
the live release, rollback restores the one before."""

_OPEN: tuple[State, ...] = ("proposed", "proposed with findings")
_MOVES: tuple[tuple[tuple[State | None, ...], Action | Consequence, State], ...] = (
    ((None, "expired", "rolled back"), "propose", "proposed"),
    ((None, "expired", "rolled back"), "propose with findings", "proposed with findings"),
    ((*_OPEN, "approved"), "approve", "approved"),
    ((*_OPEN, "approved"), "reject", "rejected"),
    ((*_OPEN, "approved", "shadow", "canary"), "expire", "expired"),
    (("approved", "canary"), "promote", "live"),
    (("approved",), "begin", "shadow"),
    (("shadow", "canary"), "step", "canary"),
    (("canary",), "back to shadow", "shadow"),
    (("shadow", "canary"), "inconclusive", "shadow"),
    (("shadow", "canary", "live"), "rollback", "rolled back"),
    (("live",), "retire", "retired"),
    (("retired",), "restore", "live"),
)
_AFTER_ROLLBACK: tuple[State, ...] = ("rolled back", *_OPEN, "approved", "rejected", "expired", "shadow")
TRANSITIONS: Mapping[tuple[State | None, Action | Consequence], State] = {
    **{(state, action): after for states, action, after in _MOVES for state in states},
    **{(state, action): state for state in ON_TRIAL for action in trial.STAYS},
    **{(state, "retracted"): state for state in _AFTER_ROLLBACK},
}
"""Every move of a release, from state to state. None: it was never proposed."""


@dataclass(frozen=True)
class LedgerState:
    """Where every release stands.

    releases: by digest, in the order they were first proposed. live_history: digests that went live
    and were not rolled back, oldest first; the last one is live. trial: of the release on trial beside
    that one. answered: since when each release has answered, but what was taken back. retractions: what is
    taken back now, of each release one at most; one ends where the release answers again. turned: the
    sequence number of the last event that changed what is served, 0 where none did. epoch: how often the
    ledger had to outrank another's record on the releases topic, or more.
    """

    releases: Mapping[str, Release] = field(default_factory=dict)
    live_history: tuple[str, ...] = ()
    trial: Trial | None = None
    answered: Mapping[str, datetime] = field(default_factory=dict)
    retractions: tuple[Retraction, ...] = ()
    turned: int = 0
    epoch: int = 0

    @property
    def live(self) -> Release | None:
        """The release that scores, or None before the first promotion."""
        return self.releases[self.live_history[-1]] if self.live_history else None

    @property
    def previous(self) -> str | None:
        """Digest of the release that a rollback would bring back, or None."""
        return self.live_history[-2] if len(self.live_history) > 1 else None

    def rollout(self, ledger: str) -> Rollout | None:
        """The rollout for every worker by the ledger of this id; None before a promotion."""
        if not self.live_history:
            return None
        shared, answered = self.trial.shares if self.trial else (0.0, 0.0)
        return Rollout(
            ledger=ledger,
            epoch=self.epoch,
            sequence=self.turned,
            stable=self.live_history[-1],
            canary=self.trial.release if self.trial else None,
            trial=self.trial.number if self.trial else None,
            canary_share=answered,
            shared_share=shared,
            retractions=self.retractions,
            previous=self.previous,
        )


def next_state(state: State | None, action: Action | Consequence) -> State:
    """The state that follows by TRANSITIONS; raises ApprovalError where the table has no such move."""
    if (after := TRANSITIONS.get((state, action))) is None:
        states = [before for before, possible in TRANSITIONS if possible == action and before]
        raise ApprovalError(
            f"it is {state or 'unknown'}; {action} is for a release that is {' or '.join(states)}"
        )
    return after


_folded: tuple[tuple[Event, ...], LedgerState] = ((), LedgerState())
"""What was folded last: the next history mostly goes on where it ended. Compared, not believed."""


def replay(events: Sequence[Event]) -> LedgerState:
    """The standing after these events, which are the ledger's in order.

    Raises DamagedLedgerError where an event is none that the table allows.
    """
    global _folded
    folded, standing = _folded
    events = tuple(events)
    if events[: len(folded)] != folded:
        folded, standing = (), LedgerState()
    if len(events) > len(folded):
        standing = apply(standing, events[len(folded) :])
        _folded = events, standing
    return standing


def apply(before: LedgerState, events: Iterable[Event]) -> LedgerState:
    """The standing after these events, which follow where another stands. Raises DamagedLedgerError."""
    releases = dict(before.releases)
    history = list(before.live_history)
    on_trial, answered, retractions = before.trial, dict(before.answered), list(before.retractions)
    turned, epoch = before.turned, before.epoch
    served = _state(history, on_trial, retractions)

    def move(digest: str, action: Action | Consequence, event: Event) -> None:
        known = releases.get(digest)
        candidate = event.move.candidate or (known.candidate if known else None)
        if candidate is None:
            raise ApprovalError("it was proposed without a candidate")
        if action == "propose" and candidate.findings:
            action = "propose with findings"
        state = next_state(known.state if known else None, action)
        releases[digest] = Release(
            digest=digest,
            state=state,
            candidate=candidate,
            since=event.at,
            actor=event.move.actor,
            reason=event.move.reason,
            sequence=event.sequence,
            **four_eyes.consent(known, event),
        )

    for event in events:
        digest, action = event.move.digest, event.move.action
        try:
            if action == "raise epoch":
                epoch = event.move.epoch or 0
                continue
            if action == "promote" and history:
                move(history[-1], "retire", event)
            move(digest, action, event)
            if action == "promote":
                history.append(digest)
            elif action == "rollback" and not (on_trial and on_trial.release == digest):
                history.pop()
                move(history[-1] if history else "", "restore", event)
            if action == "rollback" and (since := answered.pop(digest, None)):
                if event.move.rollout is not None and event.move.rollout.retract:
                    since_ms = int(since.timestamp() * 1000)
                    retractions.append(Retraction(number=event.sequence, release=digest, since_ms=since_ms))
            elif action == "retracted":
                retractions = [act for act in retractions if act.release != digest]
            on_trial = trial.after(on_trial, event, history[-1] if history else None)
            if action == "promote" or (on_trial and on_trial.release == digest and on_trial.step):
                first = next((act.since_ms for act in retractions if act.release == digest), None)
                since = event.at if first is None else datetime.fromtimestamp(first / 1000, UTC)
                answered.setdefault(digest, since)
                retractions = [act for act in retractions if act.release != digest]
            serving = _state(history, on_trial, retractions)
            if serving != served:
                served, turned = serving, event.sequence
        except ApprovalError as error:
            raise DamagedLedgerError(
                f"row {event.sequence} of the ledger breaks the rules: {error}"
            ) from error
    return LedgerState(releases, tuple(history), on_trial, answered, tuple(retractions), turned, epoch)


def _state(history: Sequence[str], on_trial: Trial | None, retractions: Sequence[Retraction]) -> object:
    live = history[-1] if history else None
    return live, on_trial and (on_trial.release, on_trial.shares), tuple(retractions)

"""Rollouts that ended, as the ledger has them. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deploy.releases.ledger import Event

_ENDS = ("promote", "rollback", "expire")


@dataclass(frozen=True)
class PastRollout:
    """A rollout: the event that began it, and the one that ended it; None while it goes on."""

    began: Event
    ended: Event | None


def past_rollouts(history: Sequence[Event]) -> Iterator[PastRollout]:
    """Yield the rollouts of a ledger, the newest first."""
    ends: dict[str, Event] = {}
    for event in reversed(history):
        if event.move.action in _ENDS:
            ends[event.move.digest] = event  # the first after its beginning is the last that is met here
        elif event.move.action == "begin":
            yield PastRollout(event, ends.pop(event.move.digest, None))

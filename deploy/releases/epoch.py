"""When the releases topic names another rollout than the ledger: the ledger's epoch rises above it.

That happens where the ledger was restored from a backup or begun anew over an old topic, where somebody
forged a record, and where two deploy servers write to one topic by mistake. Each time is an event of the
ledger's own, so none is silent; and each within a day waits twice as long as the one before, so that two
servers do not fight over the topic at full speed.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from deploy.releases.ledger import Event, Move
from deploy.releases.standing import replay
from detector.records import MAX_EPOCH, Rollout

WINDOW = timedelta(days=1)
"""How long a raise counts as recent."""

_LONGEST_WAIT = timedelta(hours=1)
_ACTOR = "deploy server"


def is_foreign(found: Rollout, ours: Rollout) -> bool:
    """Whether the topic's newest rollout is none that this ledger said before, and not outranked yet.

    Another ledger's of a lower epoch is no reason to rise: this ledger's epoch has risen above it before.
    """
    if found.ledger != ours.ledger:
        return found.epoch >= ours.epoch
    return found != ours and (found.epoch, found.sequence) >= (ours.epoch, ours.sequence)


def raise_epoch(history: Sequence[Event], ledger: str, found: Rollout) -> list[Move]:
    """Moves after which this ledger's rollout outranks `found`; none where it does, or no epoch is left."""
    ours = replay(history).rollout(ledger)
    if ours is None or not is_foreign(found, ours):
        return []
    epoch = min(max(found.epoch, ours.epoch) + 1, MAX_EPOCH)
    if epoch == ours.epoch:
        return []
    return [Move(_ACTOR, "raise epoch", "", "", reason=_reason(found, ledger), epoch=epoch)]


def recent_raises(history: Sequence[Event], now: datetime) -> list[Event]:
    """The raises of the epoch within WINDOW, oldest first."""
    return [event for event in history if event.move.action == "raise epoch" and event.at > now - WINDOW]


def next_raise_at(history: Sequence[Event], now: datetime, interval_s: float) -> datetime:
    """The earliest time of the next raise: at once the first time, then doubling from interval_s to 1 h."""
    raises = recent_raises(history, now)
    if not raises:
        return now
    wait = min(timedelta(seconds=interval_s * 2 ** len(raises)), _LONGEST_WAIT)
    return min(raises[-1].at, now) + wait


def describe(found: Rollout, ledger: str) -> str:
    """A record of the topic in words, as the ledger of this id sees it."""
    whose = "this ledger" if found.ledger == ledger else f"another ledger ({found.ledger[:12]})"
    return f"release {found.stable[:12]} by {whose}, epoch {found.epoch}, sequence {found.sequence}"


def _reason(found: Rollout, ledger: str) -> str:
    if found.ledger == ledger:
        why = "this ledger was restored from an older copy, a copy of it is in use, or the record was forged"
    else:
        why = "this ledger was begun anew, another deploy server writes there, or the record was forged"
    return f"the releases topic named {describe(found, ledger)}: {why}"

"""The releases topic is brought to the ledger's state: after a move, at start, and ever again.

The ledger's row comes first. A crash between the row and the topic is mended by the next look,
which reads the topic and writes only where it differs.

Where the topic names another rollout than the ledger, the ledger's epoch rises above it. That happens where
the ledger was restored from a backup or begun anew over an old topic, where somebody forged a record, and
where two deploy servers write to one topic by mistake. Each time is an event of the ledger's own, so none is
silent; and each within a day waits twice as long as the one before, so that two servers do not fight over
the topic at full speed.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from pydantic import ValidationError

from deploy.background import BackgroundWork
from deploy.releases import metrics
from deploy.releases.ledger import Decide, Event, Ledger, LedgerError, Move
from deploy.releases.standing import replay
from detector.records import MAX_EPOCH, Rollout
from ingest.kafka.topics import TopicError, read_all, write

WINDOW = timedelta(days=1)
"""How long a raise counts as recent."""

_LONGEST_WAIT = timedelta(hours=1)
_ACTOR = "deploy server"


def is_foreign(theirs: Rollout, ours: Rollout) -> bool:
    """Whether the topic's newest rollout is none that this ledger said before, and not outranked yet.

    Another ledger's of a lower epoch is no reason to rise: this ledger's epoch has risen above it before.
    """
    if theirs.ledger != ours.ledger:
        return theirs.epoch >= ours.epoch
    return theirs != ours and (theirs.epoch, theirs.sequence) >= (ours.epoch, ours.sequence)


def raise_epoch(history: Sequence[Event], ledger: str, theirs: Rollout) -> list[Move]:
    """Moves after which this ledger's rollout outranks `theirs`; none where it does, or no epoch is left."""
    ours = replay(history).rollout(ledger)
    if ours is None or not is_foreign(theirs, ours):
        return []
    epoch = min(max(theirs.epoch, ours.epoch) + 1, MAX_EPOCH)
    if epoch == ours.epoch:
        return []
    return [Move(_ACTOR, "raise epoch", "", "", reason=_reason(theirs, ledger), epoch=epoch)]


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


def describe(theirs: Rollout, ledger: str) -> str:
    """A record of the topic in words, as the ledger of this id sees it."""
    author = "this ledger" if theirs.ledger == ledger else f"another ledger ({theirs.ledger[:12]})"
    return f"release {theirs.stable[:12]} by {author}, epoch {theirs.epoch}, sequence {theirs.sequence}"


def _reason(theirs: Rollout, ledger: str) -> str:
    if theirs.ledger == ledger:
        why = "this ledger was restored from an older copy, a copy of it is in use, or the record was forged"
    else:
        why = "this ledger was begun anew, another deploy server writes there, or the record was forged"
    return f"the releases topic named {describe(theirs, ledger)}: {why}"


RECHECK_INTERVAL_S = 10.0
"""Between two looks whether the topic agrees with the ledger; a topic made anew lacks a release so long."""

_KEY = b"stable"

log = structlog.get_logger()


@dataclass(frozen=True)
class TopicContent:
    """The content of the releases topic.

    newest: the rollout that a worker has read last, None where no record is one.
    kept: the last record of deploy's own key, which compaction keeps; None where that is no rollout.
    """

    newest: Rollout | None = None
    kept: Rollout | None = None


def read_topic(options: Mapping[str, Any], topic: str, timeout_s: float) -> TopicContent:
    """Read the topic as a worker does: its first partition, committed records, whatever their key.

    options are kafka-python's connection options (ingest.kafka.access.kafka_options). Raises TopicError
    where the broker is away or the topic does not exist.
    """
    content = TopicContent()
    for record in read_all(options, topic, timeout_s):
        rollout = _parse(record.value)
        content = TopicContent(rollout or content.newest, rollout if record.key == _KEY else content.kept)
    return content


def write_rollout(options: Mapping[str, Any], topic: str, rollout: Rollout, timeout_s: float) -> None:
    """Write one Rollout and wait until all replicas have it; raises TopicError."""
    write(options, topic, _KEY, rollout.model_dump_json().encode(), timeout_s)


class Publisher(BackgroundWork):
    """Keeps the releases topic at the ledger's state, in a thread of its own, while it is entered."""

    def __init__(
        self, ledger: Ledger, options: Mapping[str, Any], topic: str, *, interval_s: float, timeout_s: float
    ) -> None:
        super().__init__("publisher")
        self._ledger, self._options, self._topic = ledger, dict(options), topic
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self._wake = threading.Event()
        self.problem = "not looked yet"

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._wake.set()
        super().__exit__()

    def wake(self) -> None:
        """Look now: the ledger has a new row."""
        self._wake.set()

    def heal(self) -> str | None:
        """Compare the topic with the ledger and write where they differ.

        Returns why they differ for longer, None where they agree. Raises TopicError and LedgerError.
        """
        # The topic first: what is read of the ledger after it is never older than what it wrote there.
        content = read_topic(self._options, self._topic, self._timeout_s)
        events = self._ledger.events()
        metrics.show(events)
        wanted, newest = replay(events).rollout(self._ledger.id), content.newest
        if wanted is None:
            if newest is None:
                return None
            return (
                f"the releases topic names {describe(newest, self._ledger.id)}, but nothing is live by "
                "this ledger: restore the ledger that it had, or approve a release, which outranks it"
            )
        if newest is not None and is_foreign(newest, wanted):
            now = datetime.now(UTC)
            if (due := next_raise_at(events, now, self._interval_s)) > now:
                return (
                    f"something else writes to the releases topic; it names "
                    f"{describe(newest, self._ledger.id)}, which is outranked again at {due:%H:%M:%S} UTC"
                )
            wanted = self._outrank(newest)
        elif newest is not None and newest.ledger != wanted.ledger:
            log.warning("another ledger's record on the releases topic is written over", found=newest.ledger)
        if content != TopicContent(wanted, wanted):
            write_rollout(self._options, self._topic, wanted, self._timeout_s)
            log.info("rollout published", stable=wanted.stable, epoch=wanted.epoch, sequence=wanted.sequence)
        metrics.PUBLISHED_SEQUENCE.set(wanted.sequence)
        return None

    def _outrank(self, newest: Rollout) -> Rollout:
        made = self._ledger.append(lambda history: raise_epoch(history, self._ledger.id, newest))
        events = self._ledger.events()
        for event in made:
            metrics.MOVES.labels(event.move.action).inc()
            log.error("the ledger raised its epoch", epoch=event.move.epoch, reason=event.move.reason)
        metrics.show(events)
        wanted = replay(events).rollout(self._ledger.id)
        assert wanted is not None, "where something went live, something stays live"
        return wanted

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                problem, wait_s = self.heal(), self._interval_s
            except (TopicError, LedgerError) as error:
                metrics.PUBLISH_FAILURES.inc()
                # A failed look is soon repeated: an approval waits for it.
                problem, wait_s = str(error), min(1.0, self._interval_s)
            if problem is not None and problem != self.problem:
                log.warning("the releases topic differs from the ledger", problem=problem)
            self.problem = problem
            metrics.TOPIC_AGREES.set(problem is None)
            self._wake.wait(wait_s)


def _parse(value: bytes | None) -> Rollout | None:
    try:
        return Rollout.model_validate_json(value or b"")
    except ValidationError:
        return None  # workers take no notice of it, and the next look writes over it


def make_moves(ledger: Ledger, publisher: Publisher, decide: Decide) -> tuple[Event, ...]:
    """Let `decide` look at the ledger and append its moves; raises its errors and the ledger's."""
    appended = ledger.append(decide)
    for event in appended:
        metrics.MOVES.labels(event.move.action).inc()
        log.info(
            "release moved",
            sequence=event.sequence,
            action=event.move.action,
            digest=event.move.digest,
            actor=event.move.actor,
            reason=event.move.reason,
            accepted=event.move.accepted,
        )
    if appended:
        publisher.wake()
        metrics.show(ledger.events())
    return appended

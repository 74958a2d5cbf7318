"""The releases topic is brought to what the ledger says: after a move, at start, and ever again.

The ledger's row comes first. A crash between the row and the topic is mended by the next look,
which reads the topic and writes only where it differs. A record of another ledger, or one that outranks this
ledger's, is never written over in silence: see deploy.releases.epoch.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import structlog
from pydantic import ValidationError

from deploy.releases import metrics
from deploy.releases.epoch import describe, is_foreign, next_raise_at, raise_epoch
from deploy.releases.ledger import Ledger, LedgerError
from deploy.releases.standing import replay
from detector.records import Rollout
from ingest.kafka.compacted import TopicError, read_all, write

RECHECK_INTERVAL_S = 10.0
"""Between two looks whether the topic agrees with the ledger; a topic made anew lacks a release so long."""

_KEY = b"stable"

log = structlog.get_logger()


@dataclass(frozen=True)
class TopicContent:
    """What the releases topic holds.

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
    found = TopicContent()
    for record in read_all(options, topic, timeout_s):
        rollout = _parse(record.value)
        found = TopicContent(rollout or found.newest, rollout if record.key == _KEY else found.kept)
    return found


def write_rollout(options: Mapping[str, Any], topic: str, rollout: Rollout, timeout_s: float) -> None:
    """Write one Rollout and wait until all replicas have it; raises TopicError."""
    write(options, topic, _KEY, rollout.model_dump_json().encode(), timeout_s)


class Publisher:
    """Keeps the releases topic at the ledger's state, in a thread of its own, while it is entered."""

    def __init__(
        self, ledger: Ledger, options: Mapping[str, Any], topic: str, *, interval_s: float, timeout_s: float
    ) -> None:
        self._ledger, self._options, self._topic = ledger, dict(options), topic
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.problem: str | None = "not looked yet"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def wake(self) -> None:
        """Look now: the ledger has a new row."""
        self._wake.set()

    def heal(self) -> str | None:
        """Compare the topic with the ledger and write where they differ.

        Returns why they differ for longer, None where they agree. Raises TopicError and LedgerError.
        """
        # The topic first: what is read of the ledger after it is never older than what it wrote there.
        found = read_topic(self._options, self._topic, self._timeout_s)
        events = self._ledger.events()
        metrics.show(events)
        wanted, newest = replay(events).rollout(self._ledger.id), found.newest
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
        if found != TopicContent(wanted, wanted):
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
        while not self._stopping:
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

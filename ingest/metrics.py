"""What ingest counts, and how far a consumer is behind by what it knows itself: no broker is asked.

Labels are closed sets: stages and the reasons of the MediaError classes.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ingest.records import InRecord

Place = tuple[str, int]
"""A topic and one of its partitions."""


class Reach(NamedTuple):
    """How far a partition is read: the next offset to read, its end at the last fetch, if it is fetched."""

    next: int
    end: int
    fetched: bool


def reaches(consumer: Any) -> dict[Place, Reach]:
    """Give how far each assigned partition is read; those are left out of which nothing is known yet."""
    # Not by position(), which may wait for the broker. This one steps over the ends of transactions, too.
    assigned = consumer._subscription.assignment.items()
    return {
        (at.topic, at.partition): Reach(state.position.offset, state.highwater, not state.paused)
        for at, state in list(assigned)
        if state.position is not None and state.highwater is not None
    }


def records_behind(reached: Mapping[Place, Reach]) -> int:
    """Count the offsets from where a consumer reads next to the ends."""
    return sum(max(0, reach.end - reach.next) for reach in reached.values())


@dataclass
class _Partition:
    """What is known of one partition; times are Unix times, seconds.

    unanswered: the timestamps of records that were read and have no answer, by offset. unread: whether
    there is more. first_seen: when it was first looked at; last_read: the timestamp of the newest record
    that was read; at_end: when it was last seen read to its end; None: never.
    """

    first_seen: float
    unanswered: dict[int, float] = field(default_factory=dict)
    unread: bool = False
    last_read: float | None = None
    at_end: float | None = None
    given_anew: bool = True

    def oldest(self) -> float | None:
        """The timestamp of the oldest record without an answer; None: all have one.

        A record that is not read yet is no older than the one before it, nor than the moment at which
        there was none.
        """
        times = list(self.unanswered.values())
        if self.unread:
            known = [since for since in (self.last_read, self.at_end) if since is not None]
            times.append(max(known, default=self.first_seen))
        return min(times, default=None)


class Lag(Collector):
    """The age of the oldest record that a consumer of this process has not answered; seconds, 0: none waits.

    It is computed when it is asked for, so it grows while the consumer stands still. Without a sample until
    the consumer is in its group. To be told by the consumer's thread of what is assigned and polled, and by
    any thread of what is answered.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        registry: CollectorRegistry = REGISTRY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name, self._documentation, self._clock = name, documentation, clock
        self._lock = Lock()
        self._partitions: dict[Place, _Partition] | None = None
        registry.register(self)

    def assigned(self, places: Iterable[Place]) -> None:
        """These partitions are this member's; others answer what it had of the rest."""
        now = self._clock()
        with self._lock:
            before = self._partitions or {}
            self._partitions = {place: before.get(place, _Partition(now)) for place in places}
            for partition in self._partitions.values():
                partition.given_anew = True

    def polled(self, records: Sequence[InRecord], reached: Mapping[Place, Reach]) -> None:
        """These records were read, which may be a second time; `reaches` says what is left."""
        now = self._clock()
        with self._lock:
            partitions = self._partitions if self._partitions is not None else {}
            first = {(r.topic, r.partition): r.offset for r in reversed(records)}
            for place, partition in partitions.items():
                begins = first.get(place, reached[place].next if place in reached else None)
                if partition.given_anew and begins is not None:
                    # Whoever held it in between has answered what lies before.
                    _forget(partition, begins)
                    partition.given_anew = False
            for place, begins in first.items():
                if (back := partitions.get(place)) is not None:
                    # After a step back they come again, or never, where the topic was made anew.
                    back.unanswered = {at: since for at, since in back.unanswered.items() if at < begins}
            for record in records:
                if (read := partitions.get((record.topic, record.partition))) is not None:
                    # A record without a timestamp has -1.
                    stamp = record.timestamp_ms / 1000 if record.timestamp_ms >= 0 else now
                    read.unanswered[record.offset] = read.last_read = stamp
            for place, reach in reached.items():
                if reach.fetched and (left := partitions.get(place)) is not None:
                    left.unread = reach.next < reach.end
                    if not left.unread:
                        left.at_end = now

    def answered(self, offsets: Mapping[Place, int]) -> None:
        """All before these offsets, each the next to read of its partition, has its answer."""
        with self._lock:
            for place, offset in offsets.items():
                if self._partitions is not None and (partition := self._partitions.get(place)) is not None:
                    _forget(partition, offset)

    def seconds(self) -> float | None:
        """The age now; None before the group let the consumer in."""
        now = self._clock()
        with self._lock:
            if self._partitions is None:
                return None
            times = [partition.oldest() for partition in self._partitions.values()]
        return max(0.0, now - min((since for since in times if since is not None), default=now))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauge, where there is anything to say."""
        if (age_s := self.seconds()) is not None:
            yield GaugeMetricFamily(self._name, self._documentation, value=age_s)


def _forget(partition: _Partition, before: int) -> None:
    partition.unanswered = {at: since for at, since in partition.unanswered.items() if at >= before}


_DECODE_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

MEDIA = Counter("forgewatch_ingest_media", "Records read from the media topic.")
MEDIA_BYTES = Counter("forgewatch_ingest_media_bytes", "Bytes of the values read from the media topic.")
LAG = Gauge("forgewatch_ingest_lag_records", "Records of the assigned partitions that are not read yet.")
LAG_SECONDS = Lag(
    "forgewatch_ingest_lag_seconds",
    "Age of the oldest record of the assigned partitions that has no answer; 0: none.",
)
DECODE_SECONDS = Histogram(
    "forgewatch_ingest_decode_seconds",
    "Seconds that one item spent in a decoding process for its verdict.",
    buckets=_DECODE_BUCKETS,
)
DECODE_AGAIN_SECONDS = Histogram(
    "forgewatch_ingest_decode_again_seconds",
    "Seconds that one item spent in a decoding process to be looked at again.",
    buckets=_DECODE_BUCKETS,
)
SANDBOX_RESTARTS = Counter(
    "forgewatch_ingest_sandbox_restarts", "Decoding processes replaced, by what ended them.", ["reason"]
)
TRANSACTION_SECONDS = Histogram(
    "forgewatch_ingest_transaction_seconds",
    "Seconds from the first record of a transaction to its commit.",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
TRANSACTIONS = Counter("forgewatch_ingest_transactions", "Transactions that were committed.")
TRANSACTIONS_FAILED = Counter(
    "forgewatch_ingest_transactions_failed", "Transactions that failed; each throws its producer away."
)
LOST = Counter(
    "forgewatch_ingest_lost", "Records that the media topic deleted before they were read; 0 is normal."
)
TRUNCATIONS = Counter(
    "forgewatch_ingest_truncations",
    "Logs of any topic that ended before what was read of them: cut, or restored to an earlier time.",
)
CORRUPT_BATCHES = Counter(
    "forgewatch_ingest_corrupt_batches",
    "Corrupt batches of any topic: left out, or a partition's end where not.",
)

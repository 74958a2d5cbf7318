"""Ingest's metrics, and a consumer's lag by its own knowledge: no broker is asked.

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

# A topic and one of its partitions.
Place = tuple[str, int]


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
    return sum(max(0, reach.end - reach.next) for reach in reached.values())


# A producer gives a record its timestamp: one that is older, as of a device without a clock, is not believed.
MOST_AGE_S = 30 * 86_400.0


@dataclass
class _Partition:
    """The state of one partition; times are Unix times, seconds.

    unanswered: when records came that were read and have no answer, by offset; again: those of them that are
    read once more, after a step back. unread: whether there is more. first_seen: when it was first looked at.
    no_older: no record that is read from now on came before it, None: not known.
    """

    first_seen: float
    unanswered: dict[int, float] = field(default_factory=dict)
    again: dict[int, float] = field(default_factory=dict)
    unread: bool = False
    no_older: float | None = None
    given_anew: bool = True

    def next_came(self) -> float:
        """When the next record came at the earliest, since a log is in the order in which records come."""
        return self.first_seen if self.no_older is None else self.no_older

    def take(self, offset: int, stamp: float, now: float) -> None:
        """A record is read. Its timestamp counts unless it is ages old, of the future, or out of order."""
        if max(0.0, now - MOST_AGE_S) < stamp <= now:
            self.no_older = max(stamp, self.no_older or stamp)
        self.unanswered[offset] = self.again.pop(offset, self.next_came())

    def forget(self, before: int) -> None:
        self.unanswered = {at: since for at, since in self.unanswered.items() if at >= before}
        self.again = {at: since for at, since in self.again.items() if at >= before}

    def oldest(self) -> float | None:
        """When the oldest record without an answer came; None: all have one."""
        times = [*self.unanswered.values(), *self.again.values()]
        return min([*times, self.next_came()] if self.unread else times, default=None)


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

    def assign(self, places: Iterable[Place]) -> None:
        """These partitions are this member's; others answer what it had of the rest."""
        now = self._clock()
        with self._lock:
            before = self._partitions or {}
            self._partitions = {place: before.get(place, _Partition(now)) for place in places}
            for partition in self._partitions.values():
                partition.given_anew = True

    def on_poll(self, records: Sequence[InRecord], reached: Mapping[Place, Reach]) -> None:
        """These records were read, which may be a second time; `reaches` says what is left."""
        now = self._clock()
        with self._lock:
            partitions = self._partitions if self._partitions is not None else {}
            first = {(r.topic, r.partition): r.offset for r in reversed(records)}
            for place, partition in partitions.items():
                begins = first.get(place, reached[place].next if place in reached else None)
                if partition.given_anew and begins is not None:
                    # Whoever held it in between has answered what lies before.
                    partition.forget(begins)
                    partition.given_anew = False
                if (back := first.get(place)) is not None:
                    # After a step back they come again, or never, where the topic was made anew.
                    partition.again |= {at: t for at, t in partition.unanswered.items() if at >= back}
                    partition.unanswered = {at: t for at, t in partition.unanswered.items() if at < back}
            for record in records:
                if (read := partitions.get((record.topic, record.partition))) is not None:
                    read.take(record.offset, record.timestamp_ms / 1000, now)
            for place, reach in reached.items():
                if reach.fetched and (left := partitions.get(place)) is not None:
                    left.unread = reach.next < reach.end
                    left.again = {at: t for at, t in left.again.items() if left.unread and at >= reach.next}
                    left.no_older = left.no_older if left.unread else now

    def came(self, record: InRecord) -> float:
        """When a record without an answer came, as far as is known: Unix time, seconds."""
        with self._lock:
            partition = (self._partitions or {}).get((record.topic, record.partition))
            known = partition and partition.unanswered.get(record.offset)
        return known or self._clock()

    def on_answers(self, offsets: Mapping[Place, int]) -> None:
        """All before these offsets, each the next to read of its partition, has its answer."""
        with self._lock:
            for place, offset in offsets.items():
                if self._partitions is not None and (partition := self._partitions.get(place)) is not None:
                    partition.forget(offset)

    def seconds(self) -> float | None:
        """The age now; None before the group let the consumer in."""
        now = self._clock()
        with self._lock:
            if self._partitions is None:
                return None
            times = [partition.oldest() for partition in self._partitions.values()]
        return max(0.0, now - min((since for since in times if since is not None), default=now))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        if (age_s := self.seconds()) is not None:
            yield GaugeMetricFamily(self._name, self._documentation, value=age_s)


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
SANDBOX_RESTARTS = Counter("forgewatch_ingest_sandbox_restarts", "Decoding processes replaced.", ["reason"])
TRANSACTION_SECONDS = Histogram(
    "forgewatch_ingest_transaction_seconds",
    "Seconds from the first record of a transaction to its commit.",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
TRANSACTIONS = Counter("forgewatch_ingest_transactions", "Transactions that were committed.")
TRANSACTIONS_FAILED = Counter("forgewatch_ingest_transactions_failed", "Transactions that failed.")
LOST = Counter("forgewatch_ingest_lost", "Media records deleted before they were read; 0 is normal.")
TRUNCATIONS = Counter(
    "forgewatch_ingest_truncations",
    "Logs of any topic that ended before the last offset read: cut, or restored to an earlier time.",
)
CORRUPT_BATCHES = Counter(
    "forgewatch_ingest_corrupt_batches",
    "Corrupt batches of any topic: left out, or a partition's end where not.",
)

"""Reads one of the detector's topics from a moment on, for what is recomputed from it; who sent before."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Self

from kafka import TopicPartition
from kafka.errors import KafkaError
from sqlalchemy import func, select

from deploy.rollouts.tallies import MOST_SOURCES
from detector.records import MAX_COMPARISON_BYTES
from ingest.kafka.access import REQUEST_TIMEOUT_S
from ingest.kafka.committed import committed_reader
from ingest.kafka.compacted import TopicError
from ingest.metrics import reaches
from ingest.settings import IngestSettings
from memory import schema as memory_schema
from memory.store import Store

_KNOWN_ITEMS, _KNOWN_MS = 50, 24 * 60 * 60 * 1000
_POLL_S = 0.2
_MOST = 2000


class TopicReader:
    """A reader of one topic of small records, for one thread; a context manager."""

    def __init__(self, ingest: IngestSettings, topic: str, began_ms: int) -> None:
        """Go to the first record of that time, in Unix milliseconds, or later. Raises TopicError.

        topic: comparisons or retractions, as detector.records has them.
        """
        self._topic = ingest.topic(topic)
        self._media, self._asked = ingest.media_topic, False
        self._ended: dict[tuple[str, int], float] = {}
        self._ends: dict[TopicPartition, int] = {}
        timeout_ms = int(REQUEST_TIMEOUT_S * 1000)
        try:
            self._consumer = committed_reader(ingest, None, 64 * MAX_COMPARISON_BYTES)
        except KafkaError as error:
            raise TopicError(f"cannot reach the broker: {error}") from error
        try:
            numbers = self._consumer.partitions_for_topic(self._topic) or ()
            partitions = [TopicPartition(self._topic, number) for number in numbers]
            if not partitions:
                raise TopicError(f"there is no topic {self._topic}: `forgewatch topics` makes it")
            self._consumer.assign(partitions)
            ends = self._consumer.end_offsets(partitions, timeout_ms=timeout_ms)
            firsts = self._consumer.offsets_for_times(
                dict.fromkeys(partitions, began_ms), timeout_ms=timeout_ms
            )
            for at in partitions:
                first = firsts.get(at)
                self._consumer.seek(at, ends[at] if first is None else first.offset)
        except KafkaError as error:
            self.close()
            raise TopicError(f"cannot read {self._topic}: {error}") from error
        except TopicError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the broker."""
        with suppress(KafkaError):
            self._consumer.close(autocommit=False, timeout_ms=1000)

    def poll(self) -> Iterator[tuple[bytes, Sequence[tuple[str, bytes]], float]]:
        """Yield value, headers and time (Unix, seconds) of the next records. Raises TopicError."""
        self._asked = False
        try:
            polled = self._consumer.poll(timeout_ms=int(_POLL_S * 1000), max_records=_MOST)
        except KafkaError as error:
            raise TopicError(f"cannot read {self._topic}: {error}") from error
        for at, records in polled.items():
            for record in records:
                self._ended[at.topic, at.partition] = record.timestamp / 1000
                yield record.value or b"", record.headers, record.timestamp / 1000

    def has_item(self, id: str) -> bool:
        """Whether the media topic has, or had, an item of this id: topic-partition-offset. Raises TopicError.

        How far a partition goes is asked at most once for each poll.
        """
        topic, _, place = id.rpartition("-")
        topic, _, number = topic.rpartition("-")
        if topic != self._media or not (number.isdecimal() and place.isdecimal()):
            return False
        if id != f"{topic}-{int(number)}-{int(place)}":
            return False  # with leading zeros, one item would have many names
        at, offset = TopicPartition(topic, int(number)), int(place)
        if offset >= self._ends.get(at, 0) and not self._asked:
            self._asked = True
            try:
                known = self._consumer.partitions_for_topic(topic) or ()
                parts = [TopicPartition(topic, part) for part in known]
                self._ends = self._consumer.end_offsets(parts, timeout_ms=int(REQUEST_TIMEOUT_S * 1000))
            except KafkaError as error:
                raise TopicError(f"cannot ask how far {topic} goes: {error}") from error
        return offset < self._ends.get(at, 0)

    def read_until(self, now_s: float) -> tuple[float, bool]:
        """Up to which time all that was written is read, and whether that is all there is."""
        reached = reaches(self._consumer)
        behind = [at for at, reach in reached.items() if reach.next < reach.end]
        known = len(reached) == len(self._consumer.assignment())
        until = min((self._ended.get(at, 0.0) for at in behind), default=now_s if known else 0.0)
        return until, known and not behind


def known_sources(memory: Store, before: datetime) -> list[str]:
    """Return the sources that have a history, the largest first.

    They had 50 verdicts before a time, the first of them a day before: names are made in seconds.
    """
    verdicts, before_ms = memory_schema.verdicts, int(before.timestamp() * 1000)
    count, first = func.count(), func.min(verdicts.c.at_ms)
    query = select(verdicts.c.source).where(verdicts.c.at_ms < before_ms).group_by(verdicts.c.source)
    query = query.having(count >= _KNOWN_ITEMS, first <= before_ms - _KNOWN_MS)
    with memory.read() as connection:
        return [*connection.scalars(query.order_by(count.desc(), verdicts.c.source).limit(MOST_SOURCES))]

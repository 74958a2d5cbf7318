"""Reads media again by its position, and checks that the topic still has the same bytes there."""

from collections.abc import Hashable, Iterable, Iterator
from itertools import groupby
from typing import Protocol, Self, TypeVar

import structlog
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from ingest.envelope import EnvelopeError, open_envelope
from ingest.kafka.access import REQUEST_TIMEOUT_S
from ingest.kafka.source import committed_reader, in_records
from ingest.records import InRecord
from ingest.settings import IngestSettings

# A position that still has its record gives it at the first or second.
_POLLS = 5

log = structlog.get_logger()


class Placed(Hashable, Protocol):
    """An item whose media lies at an offset, and the SHA-256 of it: a MediaItem, for one."""

    @property
    def topic(self) -> str:
        """The media's."""

    @property
    def partition(self) -> int:
        """Of the topic."""

    @property
    def offset(self) -> int:
        """In the partition."""

    @property
    def digest(self) -> str:
        """Hexadecimal."""


P = TypeVar("P", bound=Placed)


class MediaReader:
    """A consumer of no group that goes to positions; a context manager, for one thread.

    Every method may raise kafka.errors.KafkaError, which says nothing of the media: call it again.
    """

    def __init__(self, settings: IngestSettings) -> None:
        self._settings = settings
        self._consumer = committed_reader(settings, None, settings.max_record_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def media(self, items: Iterable[P]) -> Iterator[tuple[P, bytes]]:
        """Yield those of these items that the topics still have, one at a time, with their bytes.

        Left out is what retention deleted, what is other media by its digest, and what a record refers to and
        is gone.
        """
        for item, record in self.records(items):
            try:
                envelope, media = open_envelope(record, self._settings)
            except EnvelopeError as error:
                log.info("media cannot be read again", offset=item.offset, error=str(error))
                continue
            if envelope.digest == item.digest:
                yield item, media

    def records(self, items: Iterable[P]) -> Iterator[tuple[P, InRecord]]:
        """Yield the records at these items' positions; whether they hold the same media is not looked at."""
        places = sorted(items, key=lambda item: (item.topic, item.partition, item.offset))
        for (topic, number), some in groupby(places, key=lambda item: (item.topic, item.partition)):
            if number in self._consumer.partitions_for_topic(topic):
                yield from self._of_partition(TopicPartition(topic, number), some)

    def _of_partition(self, partition: TopicPartition, items: Iterable[P]) -> Iterator[tuple[P, InRecord]]:
        self._consumer.assign([partition])
        begin = self._consumer.beginning_offsets([partition])[partition]
        end = self._consumer.end_offsets([partition])[partition]
        at, following, record = -1, -1, None
        for item in items:
            if not begin <= item.offset < end:
                continue
            if item.offset != at:
                if item.offset != following:  # a seek throws away what was fetched ahead
                    self._consumer.seek(partition, item.offset)
                record, at = self._next(partition, item.offset), item.offset
                following = -1 if record is None else record.offset + 1
            if record is not None and record.offset == item.offset:
                yield item, record

    def _next(self, partition: TopicPartition, offset: int) -> InRecord | None:
        """The first record from an offset on; None where it holds nothing to be read."""
        for _ in range(_POLLS):
            polled = self._consumer.poll(timeout_ms=int(REQUEST_TIMEOUT_S * 1000) // _POLLS, max_records=1)
            if records := in_records(polled, {}):
                return records[0]
            if self._consumer.position(partition) > offset:
                return None
        raise KafkaTimeoutError(f"the broker does not give {partition.topic}-{partition.partition}-{offset}")

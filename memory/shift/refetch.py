"""Media is read again from the topic that it came by: by its offset, and only if it is the very same."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import groupby
from typing import Any

import structlog
from kafka import KafkaConsumer, TopicPartition

from ingest.envelope import EnvelopeError, open_envelope
from ingest.kafka.options import REQUEST_TIMEOUT_S, kafka_options
from ingest.settings import IngestSettings
from memory.alarms import Seen

log = structlog.get_logger()

_POLLS = 5
"""A position that still has its record gives it at the first or second."""


def refetch(wanted: Iterable[Seen], ingest: IngestSettings) -> Iterator[tuple[Seen, bytes]]:
    """Yield what the topics still have of these items, one at a time, with its bytes.

    Left out is what retention deleted, what is other media by its digest, and what a record refers to and is
    gone. Raises kafka.errors.KafkaError.
    """
    timeout_ms = int(REQUEST_TIMEOUT_S * 1000)
    consumer = KafkaConsumer(
        **kafka_options(ingest),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
        allow_auto_create_topics=False,
        request_timeout_ms=timeout_ms,
        bootstrap_timeout_ms=timeout_ms,
        max_partition_fetch_bytes=ingest.max_record_bytes,
    )
    with closing(consumer):
        places = sorted(wanted, key=lambda one: (one.topic, one.partition, one.offset))
        for topic, items in groupby(places, key=lambda one: one.topic):
            there = consumer.partitions_for_topic(topic) or set()
            for number, some in groupby(items, key=lambda one: one.partition):
                if number in there:
                    yield from _of_partition(consumer, TopicPartition(topic, number), list(some), ingest)


def _of_partition(
    consumer: KafkaConsumer,
    partition: TopicPartition,
    some: list[Seen],
    ingest: IngestSettings,
) -> Iterator[tuple[Seen, bytes]]:
    consumer.assign([partition])
    begin = consumer.beginning_offsets([partition])[partition]
    end = consumer.end_offsets([partition])[partition]
    for one in some:
        if not begin <= one.offset < end:
            continue
        consumer.seek(partition, one.offset)
        record = _next(consumer, partition, ingest)
        if record is None or record.offset != one.offset:
            continue
        try:
            item, media = open_envelope(
                record.topic,
                record.partition,
                record.offset,
                record.timestamp,
                tuple(record.headers),
                record.value,
                ingest,
            )
        except EnvelopeError as error:
            log.info("media cannot be read again", offset=one.offset, error=str(error))
            continue
        if item.digest == one.digest:
            yield one, media


def _next(consumer: KafkaConsumer, partition: TopicPartition, ingest: IngestSettings) -> Any:
    for _ in range(_POLLS):
        polled = consumer.poll(timeout_ms=int(REQUEST_TIMEOUT_S * 1000) // _POLLS, max_records=1)
        if polled.get(partition):
            return polled[partition][0]
    return None

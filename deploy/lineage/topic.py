"""One verdict, read from its place in the topic."""

import time
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError
from pydantic import ValidationError

from detector.reading import parse_record
from detector.records import VERDICTS, Verdict, Withdrawal
from ingest.kafka.access import barred, kafka_options
from ingest.kafka.compacted import TopicError
from ingest.settings import IngestSettings
from memory.verdict_index import VerdictPlace


def read_verdict(
    ingest: IngestSettings, place: VerdictPlace, timeout_s: float
) -> Verdict | Withdrawal | None:
    """Return what lies there; None where the topic has it no more. Raises TopicError."""
    options = kafka_options(ingest)
    if problem := barred(options, timeout_s):
        raise TopicError(problem)
    try:
        consumer = KafkaConsumer(
            **options,
            group_id=None,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
            bootstrap_timeout_ms=int(timeout_s * 1000),
        )
    except KafkaError as error:
        raise TopicError(f"cannot reach the broker: {error}") from error
    try:
        part = TopicPartition(ingest.topic(VERDICTS), place.partition)
        record = _record(consumer, part, place.offset, timeout_s)
        found = None if record is None else parse_record(record.value, record.headers)
    except ValidationError:
        return None  # another topic of the same name, or a later version's
    except KafkaError as error:
        raise TopicError(f"cannot read the topic of verdicts: {error}") from error
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)
    wanted = (place.item_partition, place.item_offset)
    return found if found and (found.item.partition, found.item.offset) == wanted else None


def _record(consumer: KafkaConsumer, part: TopicPartition, offset: int, timeout_s: float) -> Any:
    consumer.assign([part])
    consumer.seek(part, offset)
    deadline = time.monotonic() + timeout_s
    try:
        while time.monotonic() < deadline:
            for record in consumer.poll(timeout_ms=100, max_records=1).get(part, []):
                return record if record.offset == offset else None
            if consumer.position(part) > offset:
                return None  # nothing to be read lies there: the topic was made anew
    except OffsetOutOfRangeError:
        return None
    raise TopicError(f"reading the topic of verdicts took longer than {timeout_s:g} s")

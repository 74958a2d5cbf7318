"""One verdict, read from its place in the topic."""

import time
from typing import Any

from kafka import TopicPartition
from kafka.errors import OffsetOutOfRangeError
from pydantic import ValidationError

from detector.reading import parse_record
from detector.records import VERDICTS, Verdict, Withdrawal
from ingest.kafka.access import kafka_options
from ingest.kafka.compacted import TopicError, open_reader
from ingest.settings import IngestSettings
from memory.verdict_index import VerdictPlace


def read_verdict(
    ingest: IngestSettings, place: VerdictPlace, timeout_s: float
) -> Verdict | Withdrawal | None:
    """Return what lies there; None where the topic has it no more. Raises TopicError."""
    topic, more = ingest.topic(VERDICTS), {"auto_offset_reset": "none"}
    try:
        with open_reader(kafka_options(ingest), topic, timeout_s, **more) as (consumer, _):
            record = _record(consumer, TopicPartition(topic, place.partition), place.offset, timeout_s)
        found = None if record is None else parse_record(record.value, record.headers)
    except ValidationError:
        return None  # another topic of the same name, or a later version's
    wanted = (place.item_partition, place.item_offset)
    return found if found and (found.item.partition, found.item.offset) == wanted else None


def _record(consumer: Any, part: TopicPartition, offset: int, timeout_s: float) -> Any:
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

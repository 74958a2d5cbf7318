"""The dead letters, newest first: what was wrong with each, and where the original lies; never its bytes."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka import TopicPartition

from ingest.dead_letters import FACTS, PREFIX
from ingest.kafka.access import kafka_options
from ingest.kafka.committed import in_records
from ingest.kafka.compacted import TopicError, open_reader
from ingest.records import InRecord
from ingest.settings import IngestSettings


@dataclass(frozen=True)
class DeadLetter:
    """One of them. facts are what ingest.dead_letters adds, by name."""

    partition: int
    offset: int
    at_ms: int
    facts: Mapping[str, str]
    event: str | None
    """id of its CloudEvent"""
    source: str | None
    size: int | None
    """bytes of the value; None where it has none"""
    digest: str | None
    """SHA-256 of the value"""


@dataclass(frozen=True)
class LetterPage:
    """Some of them, the newest first. older: what `before` is for the next page; None at the end."""

    letters: tuple[DeadLetter, ...]
    older: Mapping[int, int] | None


def read_page(ingest: IngestSettings, before: Mapping[int, int], most: int, timeout_s: float) -> LetterPage:
    """Read the newest dead letters that lie before an offset of each partition; {}: the newest of all.

    Reads at most `most` offsets a partition, so it may hold fewer. Raises TopicError.
    """
    topic, timeout_ms = ingest.dead_letters_topic, int(timeout_s * 1000)
    with open_reader(kafka_options(ingest), topic, timeout_s) as (consumer, parts):
        begin = consumer.beginning_offsets(parts, timeout_ms=timeout_ms)
        ends = consumer.end_offsets(parts, timeout_ms=timeout_ms)
        upper = {part: min(ends[part], before.get(part.partition, ends[part])) for part in parts}
        lower = {part: max(begin[part], upper[part] - most) for part in parts}
        letters = _between(consumer, lower, upper, timeout_s, topic)
    letters.sort(key=lambda letter: letter.at_ms, reverse=True)
    shown = letters[:most]
    # Where all that was read of a partition is shown, the next page goes on before it.
    older = {part.partition: offset for part, offset in lower.items()}
    for letter in letters[most:]:
        older[letter.partition] = max(older[letter.partition], letter.offset + 1)
    more = any(older[part.partition] > begin[part] for part in parts)
    return LetterPage(tuple(shown), older if more else None)


def _between(
    consumer: Any,
    lower: Mapping[TopicPartition, int],
    upper: Mapping[TopicPartition, int],
    timeout_s: float,
    topic: str,
) -> list[DeadLetter]:
    """Keep what the records say, and no value: a page of them is gigabytes."""
    waiting = {part for part in lower if lower[part] < upper[part]}
    consumer.assign(list(waiting))
    for part in waiting:
        consumer.seek(part, lower[part])
    letters, deadline = list[DeadLetter](), time.monotonic() + timeout_s
    while waiting:
        if time.monotonic() > deadline:
            raise TopicError(f"reading {topic} took longer than {timeout_s:g} s")
        for part, polled in consumer.poll(timeout_ms=100).items():
            came = in_records({part: polled}, {})
            letters += [read_letter(record) for record in came if record.offset < upper[part]]
        waiting = {part for part in waiting if consumer.position(part) < upper[part]}
    return letters


def read_letter(record: InRecord) -> DeadLetter:
    """Give what a record of the topic says; facts that it lacks are left out."""
    headers = {name: (raw or b"").decode("utf-8", "replace") for name, raw in record.headers}
    facts = {name: headers[PREFIX + name] for name in FACTS if PREFIX + name in headers}
    value = record.value
    return DeadLetter(
        record.partition,
        record.offset,
        record.timestamp_ms,
        facts,
        headers.get("ce_id"),
        headers.get("ce_source"),
        None if value is None else len(value),
        None if value is None else hashlib.sha256(value).hexdigest(),
    )

"""The dead letters: read, newest first, and sent back to where they came from, each once.

A page says what was wrong with each, and where the original lies; never its bytes. A replayed record and the
mark that its letter was replayed are one transaction. All who replay share one transactional id: who begins
ends the transaction of another, and reads the marks after that.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kafka import TopicPartition

from detector.records import UNKNOWNS
from ingest.dead_letters import (
    FACTS,
    PREFIX,
    REPLAYS,
    ReplayError,
    build_replay,
    is_cut,
    origin,
    replay_count,
)
from ingest.kafka.access import kafka_options
from ingest.kafka.sink import RecordTooLargeError, TransactionalSink
from ingest.kafka.source import in_records
from ingest.kafka.topics import TopicError, open_reader, read_all
from ingest.records import InRecord, OutRecord
from ingest.reread import MediaReader
from ingest.settings import IngestSettings


@dataclass(frozen=True)
class DeadLetter:
    """One of them. facts: the headers that ingest.dead_letters adds, by name."""

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
    """Some of them, the newest first. older: `before` of the next page; None at the end."""

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
    page = letters[:most]
    # Where all that was read of a partition is shown, the next page goes on before it.
    older = {part.partition: offset for part, offset in lower.items()}
    for letter in letters[most:]:
        older[letter.partition] = max(older[letter.partition], letter.offset + 1)
    more = any(older[part.partition] > begin[part] for part in parts)
    return LetterPage(tuple(page), older if more else None)


def _between(
    consumer: Any,
    lower: Mapping[TopicPartition, int],
    upper: Mapping[TopicPartition, int],
    timeout_s: float,
    topic: str,
) -> list[DeadLetter]:
    """Keep the records' facts, and no value: a page of them is gigabytes."""
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
    """Give the letter of a record of the topic; facts that it lacks are left out."""
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


MOST_REPLAYS = 2
"""What failed, and failed again twice, is most likely to fail again: then it must be asked for."""
_AT_ONCE = 100


@dataclass(frozen=True)
class RecordPlace:
    """Where a record lies: a dead letter, or the original of one."""

    topic: str
    partition: int
    offset: int
    digest: str = ""

    @property
    def id(self) -> str:
        """topic-partition-offset."""
        return f"{self.topic}-{self.partition}-{self.offset}"


@dataclass(frozen=True)
class ReplayOutcome:
    """The result of a replay; why_not is None where it was replayed."""

    letter: str
    why_not: str | None = None


def replayed_before(ingest: IngestSettings, timeout_s: float) -> set[str]:
    """Ids of the letters that were replayed. Raises TopicError."""
    marks = read_all(kafka_options(ingest), ingest.topic(REPLAYS), timeout_s)
    return {mark.key.decode(errors="replace") for mark in marks if mark.key and mark.value is not None}


def replay(
    ingest: IngestSettings, places: Sequence[RecordPlace], timeout_s: float, *, force: bool = False
) -> Iterator[ReplayOutcome]:
    """Replay the letters at these places, in this order, and yield each result once it is committed.

    force: those that were replayed, or failed three times, too. Raises TopicError, SinkError,
    kafka.errors.KafkaError: what was yielded by then is done, and what is asked for again is not done twice.
    """
    with TransactionalSink(ingest, ingest.topic(REPLAYS)) as sink, MediaReader(ingest) as reader:
        done = replayed_before(ingest, timeout_s)
        left = list(dict.fromkeys(places))
        while some := left[:_AT_ONCE]:
            left = left[_AT_ONCE:]
            letters = dict(reader.records(some))
            outcomes, sent = [], dict[str, list[OutRecord]]()
            for place in some:
                try:
                    if place.id in done and not force:
                        raise ReplayError("it was replayed before")
                    sent[place.id] = _records_to_send(place, letters.get(place), reader, ingest, force=force)
                    outcomes.append(ReplayOutcome(place.id))
                except ReplayError as error:
                    outcomes.append(ReplayOutcome(place.id, str(error)))
            yield from _commit_replays(sink, outcomes, sent)
            done |= sent.keys()


def _records_to_send(
    place: RecordPlace, letter: InRecord | None, reader: MediaReader, ingest: IngestSettings, *, force: bool
) -> list[OutRecord]:
    if letter is None:
        raise ReplayError("no dead letter lies there any more")
    topic, partition, offset = origin(letter)
    if topic not in (ingest.media_topic, ingest.topic(UNKNOWNS)):
        raise ReplayError(f"it says that it came on {topic}, which is neither media nor unknowns")
    if replay_count(letter) >= MOST_REPLAYS and not force:
        raise ReplayError(f"it failed {replay_count(letter) + 1} times: --force tries it once more")
    record: InRecord | None = letter
    if is_cut(letter):
        original = RecordPlace(topic, partition, offset)
        record = dict(reader.records([original])).get(original)
    if record is None:
        raise ReplayError(f"it was too large to be kept whole, and {topic}-{partition}-{offset} is gone")
    mark = json.dumps({"at": datetime.now(UTC).isoformat()}).encode()
    return [build_replay(letter, record), OutRecord(ingest.topic(REPLAYS), place.id.encode(), mark)]


def _commit_replays(
    sink: TransactionalSink, outcomes: list[ReplayOutcome], sent: dict[str, list[OutRecord]]
) -> list[ReplayOutcome]:
    while sent:
        try:
            sink.commit([record for records in sent.values() for record in records], {}, None)
            break
        except RecordTooLargeError as error:
            in_the_way = next(name for name, records in sent.items() if error.record in records)
            del sent[in_the_way]
            outcome = ReplayOutcome(in_the_way, f"{error}: send its media by a claim check")
            outcomes = [outcome if other.letter == in_the_way else other for other in outcomes]
    return outcomes

"""The stream as a client sees it: media in, verdicts out.

Everything here may also raise ingest.kafka.access.BrokerRefusedError, which no other file or try would mend.
"""

import hashlib
import mimetypes
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import AuthorizationError, KafkaError
from pydantic import ValidationError

from deploy.dead_letters import DeadLetter, read_letter
from detector.reading import parse_record
from detector.records import VERDICTS, Verdict, Withdrawal
from ingest.durable import write_durably
from ingest.kafka.access import as_refusal, kafka_options, outage, require_entry
from ingest.kafka.sink import record_bytes
from ingest.kafka.source import in_records
from ingest.settings import HEADER_ROOM_BYTES, IngestSettings

EVENT_TYPE = "io.forgewatch.media"
_WAIT_S, _ANSWER_S = 10.0, 30.0
# A verdict may share a transaction with no other, and each transaction's end takes an offset.
_OFFSETS_PER_VERDICT = 2

Answer = Verdict | DeadLetter


class StreamError(Exception):
    """The broker cannot be reached, or a record cannot be sent; the text says why."""


@contextmanager
def media_producer(settings: IngestSettings) -> Iterator[Any]:
    """A producer whose records may be as large as the media topic takes; raises StreamError."""
    _require_broker(settings)
    try:
        producer = KafkaProducer(
            **kafka_options(settings),
            acks="all",
            max_request_size=settings.max_media_bytes + HEADER_ROOM_BYTES,
            bootstrap_timeout_ms=int(_WAIT_S * 1000),
            max_block_ms=int(_WAIT_S * 1000),
        )
    except KafkaError as error:
        raise StreamError(f"cannot reach the broker at {settings.bootstrap_servers}: {error}") from error
    try:
        yield producer
    finally:
        producer.close(timeout=_WAIT_S)


def send_file(
    producer: Any, settings: IngestSettings, path: Path, *, raw: bool, source: str | None = None
) -> str:
    """Send one file to the media topic; returns its position, which is its verdict's id.

    As a CloudEvent in binary mode: a fresh id that begins with the file's name, its folder as source where
    none is given, its content type; with `raw` as a bare value. An event over the record limit goes as a
    claim check: of the file where it lies below the configured root, else of a copy that is made there.
    Raises StreamError, OSError.
    """
    path = path.resolve()
    size, limit = path.stat().st_size, settings.max_media_bytes
    if size > settings.max_fetched_bytes:
        raise StreamError(f"{path}: {size} bytes; the limit is {settings.max_fetched_bytes}: make it smaller")
    media, headers = path.read_bytes(), [] if raw else event_headers(path, source=source)
    if record_bytes(None, media, headers) > limit:
        if raw:
            raise StreamError(f"{path}: larger than a bare value may be, {limit} bytes: leave --raw out")
        headers.append(("ce_dataref", _claim_check(path, media, settings).as_uri().encode()))
        media = b""
    try:
        sent = producer.send(settings.media_topic, value=media, headers=headers).get(timeout=_WAIT_S)
    except AuthorizationError as error:
        raise as_refusal(error, kafka_options(settings)) from error
    except KafkaError as error:
        raise StreamError(f"{path}: not sent: {error}") from error
    return f"{sent.topic}-{sent.partition}-{sent.offset}"


def newest_verdicts(settings: IngestSettings, topic: str, count: int) -> list[Verdict | Withdrawal]:
    """The newest `count` committed records, the oldest of them first; raises StreamError."""
    verdicts = []
    with _verdict_reader(settings, [topic], count) as (consumer, ends):
        deadline = time.monotonic() + _WAIT_S
        while any(consumer.position(part) < end for part, end in ends.items()):
            if time.monotonic() > deadline:
                raise StreamError(f"reading {topic} took longer than {_WAIT_S:g} s")
            verdicts += list(_poll(consumer))
    verdicts.sort(key=lambda pair: pair[0])
    return [verdict for _, verdict in verdicts[-count:]]


def follow_verdicts(settings: IngestSettings, topic: str) -> Iterator[Verdict | Withdrawal]:
    """Every record that is committed from now on, without an end; raises StreamError."""
    with _verdict_reader(settings, [topic], 0) as (consumer, _):
        while True:
            for _, verdict in _poll(consumer):
                yield verdict


@contextmanager
def answers(settings: IngestSettings) -> Iterator[Callable[[Iterable[str]], Iterator[tuple[str, Answer]]]]:
    """A call that gives, for items that are sent from now on, each one's answer as it is committed.

    It takes their positions, and ends when all are answered, or none was for 30 s. Raises StreamError.
    """
    topics = settings.topic(VERDICTS), settings.dead_letters_topic
    with _verdict_reader(settings, topics, 0) as (consumer, _):

        def follow(sent: Iterable[str]) -> Iterator[tuple[str, Answer]]:
            waiting, until = set(sent), time.monotonic() + _ANSWER_S
            while waiting and time.monotonic() < until:
                for id_, answer in _read_answers(consumer, settings.dead_letters_topic):
                    if id_ in waiting:
                        waiting.remove(id_)
                        until = time.monotonic() + _ANSWER_S
                        yield id_, answer

        yield follow


def _read_answers(consumer: Any, dead_letters: str) -> Iterator[tuple[str, Answer]]:
    for part, records in consumer.poll(timeout_ms=200).items():
        for record in in_records({part: records}, {}):
            if part.topic == dead_letters:
                letter = read_letter(record)
                yield (
                    "-".join(letter.facts.get(name, "") for name in ("topic", "partition", "offset")),
                    letter,
                )
                continue
            with suppress(ValidationError):
                if isinstance(verdict := parse_record(record.value, record.headers), Verdict):
                    yield verdict.id, verdict


@contextmanager
def _verdict_reader(
    settings: IngestSettings, topics: Sequence[str], count: int
) -> Iterator[tuple[Any, dict[TopicPartition, int]]]:
    """A read_committed consumer that stands `count` verdicts before the end of each partition of topics."""
    _require_broker(settings)
    try:
        consumer = KafkaConsumer(
            **kafka_options(settings),
            group_id=None,
            isolation_level="read_committed",
            enable_auto_commit=False,
            bootstrap_timeout_ms=int(_WAIT_S * 1000),
        )
    except KafkaError as error:
        raise StreamError(f"cannot reach the broker at {settings.bootstrap_servers}: {error}") from error
    try:
        parts = []
        for topic in topics:
            if not (numbers := consumer.partitions_for_topic(topic)):
                raise StreamError(f"there is no topic {topic}: is a detector running?")
            parts += [TopicPartition(topic, number) for number in numbers]
        consumer.assign(parts)
        ends = consumer.end_offsets(parts)
        starts = consumer.beginning_offsets(parts)
        for part in parts:
            consumer.seek(part, max(starts[part], ends[part] - count * _OFFSETS_PER_VERDICT))
        yield consumer, ends
    except AuthorizationError as error:
        raise as_refusal(error, kafka_options(settings)) from error
    except KafkaError as error:
        raise StreamError(f"cannot read {', '.join(topics)}: {error}") from error
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)


def _require_broker(settings: IngestSettings) -> None:
    options = kafka_options(settings)
    if problem := outage(options, _WAIT_S):
        raise StreamError(f"{problem}; start the stack with `forgewatch up`")
    require_entry(options, _WAIT_S)


def _poll(consumer: Any) -> Iterator[tuple[int, Verdict | Withdrawal]]:
    for records in consumer.poll(timeout_ms=200).values():
        for record in records:
            try:
                yield record.timestamp, parse_record(record.value, record.headers)
            except ValidationError:
                continue  # of a later version, or none of the detector's


def _claim_check(path: Path, media: bytes, settings: IngestSettings) -> Path:
    """Where the detectors may fetch a file: where it lies, or in a copy that is named by its SHA-256."""
    if settings.claim_check_dir is None:
        raise StreamError(
            f"{path}: larger than a record, {settings.max_media_bytes} bytes: set "
            "FORGEWATCH_INGEST_CLAIM_CHECK_DIR to the folder that the detectors read"
        )
    root = settings.claim_check_dir.resolve()
    copy = root / "sent" / hashlib.sha256(media).hexdigest()
    if path.is_relative_to(root):
        return path
    copy.parent.mkdir(parents=True, exist_ok=True)
    if not copy.exists():
        write_durably(copy, media)
    copy.chmod(0o644)  # a detector may run as another user
    return copy


def event_headers(path: Path, *, source: str | None = None) -> list[tuple[str, bytes]]:
    """The headers of the CloudEvent that carries a file; path is absolute.

    source: the event's; without it the file's folder.
    """
    headers = {
        "ce_specversion": "1.0",
        "ce_id": f"{quote(os.fsencode(path.name))}-{uuid.uuid4()}",
        "ce_source": source or quote(os.fsencode(path.parent)),
        "ce_type": EVENT_TYPE,
        "content-type": mimetypes.guess_type(path.name)[0] or "application/octet-stream",
    }
    return [(name, value.encode()) for name, value in headers.items()]

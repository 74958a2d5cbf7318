"""Reads one of the detector's topics from a moment on, and believes a record only where it may be true."""

import hmac
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from math import inf, isfinite
from typing import Self

from kafka import TopicPartition
from kafka.errors import KafkaError
from pydantic import ValidationError
from sqlalchemy import func, select

from deploy.rollout_records import Trial
from deploy.rollouts.tallies import MOST_SOURCES
from detector.records import MAX_COMPARISON_BYTES, SIGNATURE, Comparison, ReleaseVerdict, in_share, sign
from ingest.kafka.access import REQUEST_TIMEOUT_S
from ingest.kafka.source import committed_reader
from ingest.kafka.topics import TopicError
from ingest.metrics import reaches
from ingest.settings import IngestSettings
from memory import schema as memory_schema
from memory.store import Store

_PLACE = re.compile("(.+)-(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,18})")
_AHEAD_S = 60.0
"""A clock may be ahead by so much."""


class InvalidComparisonError(Exception):
    """A record that says it is a comparison of this rollout, and cannot be. Fatal for the record."""


def parse_comparison(
    value: bytes,
    headers: Sequence[tuple[str, bytes]],
    at_s: float,
    trial: Trial,
    families: Collection[str],
    media_topic: str,
    keys: Sequence[bytes],
    now_s: float,
) -> Comparison | None:
    """Return a record's comparison; None of one that is of another rollout.

    families: all that both releases know. keys: the tokens of detectors; where there is one, a comparison is
    signed by one of them. Raises UnbelievableError.
    """
    if len(value) > MAX_COMPARISON_BYTES:
        raise InvalidComparisonError(
            f"it has {len(value):,} bytes, and a comparison {MAX_COMPARISON_BYTES:,} at most"
        )
    require_signed(value, headers, keys)
    try:
        comparison = Comparison.model_validate_json(value)
    except ValidationError as error:
        raise InvalidComparisonError(f"it is no comparison: {error.errors()[0]['msg']}") from error
    if (comparison.champion.release, comparison.challenger.release) != (trial.champion, trial.release):
        return None
    if at_s < trial.began.timestamp():
        return None
    if comparison.rollout != trial.number:
        raise InvalidComparisonError(f"it is of the rollout {comparison.rollout}, and not of {trial.number}")
    if at_s > now_s + _AHEAD_S:
        raise InvalidComparisonError("it is from the future")
    compares = comparison.left_out is None
    for verdict in (comparison.champion, comparison.challenger) if compares else ():
        _require_sayable(verdict, families)
    steps = [trial.plan.shares(step) for step in range(len(trial.plan.canary) + 1)]
    shared, answered = (max(shares) for shares in zip(*steps, strict=True))
    placed = _PLACE.fullmatch(comparison.id)
    if not placed or placed[1] != media_topic or not in_share(comparison.id, shared):
        raise InvalidComparisonError(f"{comparison.id[:100]!r} is no item that both releases score")
    if comparison.answered == "challenger" and not in_share(comparison.id, answered):
        raise InvalidComparisonError(f"{comparison.id!r} is no item that the challenger answers")
    return comparison


def require_signed(value: bytes, headers: Sequence[tuple[str, bytes]], keys: Sequence[bytes]) -> None:
    """Raise UnbelievableError unless one of the keys signed it; where there is none, nothing is asked for."""
    signature = dict(headers).get(SIGNATURE, b"")
    if keys and not any(hmac.compare_digest(sign(key, value), signature) for key in keys):
        raise InvalidComparisonError("it is not signed by a detector's token")


def _require_sayable(verdict: ReleaseVerdict, families: Collection[str]) -> None:
    """Raises UnbelievableError where no release says that."""
    if not 0 <= verdict.model_s < inf:
        raise InvalidComparisonError(f"no item takes {verdict.model_s} s")
    if verdict.error is not None:
        return
    scores = (verdict.fake_probability, verdict.energy, verdict.unknown_score)
    if verdict.label is None or any(score is None or not isfinite(score) for score in scores):
        raise InvalidComparisonError("a release that could score an item says a label and finite scores")
    if not 0 <= (verdict.fake_probability or 0) <= 1:
        raise InvalidComparisonError(f"{verdict.fake_probability} is no probability")
    if verdict.family is not None and verdict.family not in families:
        raise InvalidComparisonError(f"neither release knows a family {verdict.family[:100]!r}")


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
            since = dict.fromkeys(partitions, began_ms)
            firsts = self._consumer.offsets_for_times(since, timeout_ms=timeout_ms)
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

"""Reads the comparisons of one rollout from their topic, from where it began; believes only what may be."""

import hmac
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from math import inf, isfinite
from typing import Self

import structlog
from kafka import TopicPartition
from kafka.errors import KafkaError
from pydantic import ValidationError

from deploy.rollout_records import Trial
from detector.comparison import SIGNATURE, sign
from detector.records import COMPARISONS, MAX_COMPARISON_BYTES, Comparison, Said
from detector.serving.rollout import in_share
from ingest.kafka.access import REQUEST_TIMEOUT_S
from ingest.kafka.committed import committed_reader
from ingest.kafka.compacted import TopicError
from ingest.metrics import reaches
from ingest.settings import IngestSettings

_POLL_S = 0.2
_MOST = 2000
_PLACE = re.compile("(.+)-(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,18})")
_AHEAD_S = 60.0
"""A clock may be ahead by so much."""

log = structlog.get_logger()


class UnbelievableError(Exception):
    """A record that says it is a comparison of this rollout, and cannot be. Fatal for the record."""


class Comparisons:
    """A reader of the topic, for one rollout and one thread; a context manager."""

    def __init__(self, ingest: IngestSettings, began_ms: int) -> None:
        """Go to where the rollout began. Raises TopicError."""
        self._topic = ingest.topic(COMPARISONS)
        self._ended: dict[tuple[str, int], float] = {}
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
        try:
            polled = self._consumer.poll(timeout_ms=int(_POLL_S * 1000), max_records=_MOST)
        except KafkaError as error:
            raise TopicError(f"cannot read {self._topic}: {error}") from error
        for at, records in polled.items():
            for record in records:
                self._ended[at.topic, at.partition] = record.timestamp / 1000
                yield record.value or b"", record.headers, record.timestamp / 1000

    def read_until(self, now_s: float) -> tuple[float, bool]:
        """Up to which time all that was written is read, and whether that is all there is."""
        reached = reaches(self._consumer)
        behind = [at for at, reach in reached.items() if reach.next < reach.end]
        known = len(reached) == len(self._consumer.assignment())
        until = min((self._ended.get(at, 0.0) for at in behind), default=now_s if known else 0.0)
        return until, known and not behind


def believed(
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
        raise UnbelievableError(
            f"it has {len(value):,} bytes, and a comparison {MAX_COMPARISON_BYTES:,} at most"
        )
    if keys:
        signature = dict(headers).get(SIGNATURE, b"")
        if not any(hmac.compare_digest(sign(key, value), signature) for key in keys):
            raise UnbelievableError("it is not signed by a detector's token")
    try:
        comparison = Comparison.model_validate_json(value)
    except ValidationError as error:
        raise UnbelievableError(f"it is no comparison: {error.errors()[0]['msg']}") from error
    if (comparison.champion.release, comparison.challenger.release) != (trial.champion, trial.release):
        return None
    if at_s < trial.began.timestamp():
        return None
    if at_s > now_s + _AHEAD_S:
        raise UnbelievableError("it is from the future")
    for said in (comparison.champion, comparison.challenger):
        _require_sayable(said, families)
    steps = [trial.plan.shares(step) for step in range(len(trial.plan.canary) + 1)]
    shared, answered = (max(shares) for shares in zip(*steps, strict=True))
    placed = _PLACE.fullmatch(comparison.id)
    if not placed or placed[1] != media_topic or not in_share(comparison.id, shared):
        raise UnbelievableError(f"{comparison.id[:100]!r} is no item that both releases score")
    if comparison.answered == "challenger" and not in_share(comparison.id, answered):
        raise UnbelievableError(f"{comparison.id!r} is no item that the challenger answers")
    return comparison


def _require_sayable(said: Said, families: Collection[str]) -> None:
    """Raises UnbelievableError where no release says that."""
    if not 0 <= said.model_s < inf:
        raise UnbelievableError(f"no item takes {said.model_s} s")
    if said.error is not None:
        return
    scores = (said.fake_probability, said.energy, said.unknown_score)
    if said.label is None or any(score is None or not isfinite(score) for score in scores):
        raise UnbelievableError("a release that could score an item says a label and finite scores")
    if not 0 <= (said.fake_probability or 0) <= 1:
        raise UnbelievableError(f"{said.fake_probability} is no probability")
    if said.family is not None and said.family not in families:
        raise UnbelievableError(f"neither release knows a family {said.family[:100]!r}")

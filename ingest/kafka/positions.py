"""Whether a position still means what it did: is the topic the one that was read, and has it that record?

Records are fetched by the topic's name, so that a position in one topic would be taken for one in another
that was made anew under its name; the broker is asked beside the reading. Retention deletes records whether
they were read or not. A log ends before what was read of it where its broker lost the end of it (an unclean
election), or had its disks restored to an earlier time.
"""

import math
import threading
import time
from collections.abc import Mapping
from typing import Any

import structlog
from kafka import TopicPartition
from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError
from prometheus_client import Counter

from ingest import metrics

# Within this time no topic is deleted, made anew and filled; a client asks no sooner (retry_backoff_ms).
_SAME_TOPIC_S = 0.1


class TopicRenewedError(KafkaError):  # type: ignore[misc]
    """Fatal: the topic is another than the one that was read. A new source reads it from its beginning."""


class SameTopic:
    """The broker's word on which topic a consumer reads; usable from several threads.

    A question costs a round trip to the broker, and up to 0.1 s where one was asked just before. So it is
    asked when records come (`ask`), and its answer is only waited for when they are to be committed
    (`confirm`): what was fetched before the question was asked is then of that topic.
    """

    def __init__(self, consumer: Any, topic: str, timeout_ms: int) -> None:
        self._consumer, self._topic, self._timeout_ms = consumer, topic, timeout_ms
        self._lock = threading.Lock()
        self._question: tuple[float, Any] | None = None
        self._fetched_at = self._asked_at = -math.inf
        self.topic_id: str | None = None
        """None: nothing was answered yet, or the broker gives no ids."""

    def ask(self) -> None:
        """Ask about all that was fetched so far, without waiting. Raises TopicRenewedError."""
        self._fetched_at = time.monotonic()
        with self._lock:
            question = self._question
        if question is not None and question[1].succeeded():
            self._hear(question)
        self._put(self._fetched_at)

    def confirm(self) -> None:
        """Wait until the broker has said of which topic all is that was asked about.

        Raises TopicRenewedError, and another KafkaError where the broker does not tell.
        """
        fetched_at = self._fetched_at
        while (question := self._put(fetched_at)) is not None:
            self._consumer._net.run(self._consumer._manager.wait_for, question[1], self._timeout_ms)
            self._hear(question)

    def _put(self, fetched_at: float) -> tuple[float, Any] | None:
        """Have a question under way, unless the last answer covers what was fetched by then."""
        with self._lock:
            if fetched_at - self._asked_at < _SAME_TOPIC_S or fetched_at == -math.inf:
                return None
            if self._question is None or self._question[1].failed():
                self._question = time.monotonic(), self._consumer._cluster.request_update()
            return self._question

    def _hear(self, question: tuple[float, Any]) -> None:
        asked_at, _ = question
        with self._lock:
            if self._question is question:
                self._question = None
            topic_id = self._consumer._cluster.topic_id(self._topic)
            if topic_id is not None:  # else it is gone, or the broker gives no ids
                if self.topic_id not in (None, str(topic_id)):
                    problem = f"the topic {self._topic} was made anew; a new start reads all of it"
                    raise TopicRenewedError(problem)
                self.topic_id = str(topic_id)
            self._asked_at = max(self._asked_at, asked_at)


def fresh_topic_id(consumer: Any, topic: str, timeout_ms: int) -> str | None:
    """Ask the broker for a topic's id; None where there is no such topic, or no ids. Raises KafkaError."""
    update = consumer._cluster.request_update()
    consumer._net.run(consumer._manager.wait_for, update, timeout_ms)
    topic_id = consumer._cluster.topic_id(topic)
    return None if topic_id is None else str(topic_id)


log = structlog.get_logger()


def seek_past_gap(
    consumer: Any,
    error: OffsetOutOfRangeError | LogTruncationError,
    kept: Mapping[TopicPartition, int | None],
    lost: Counter,
) -> dict[TopicPartition, tuple[int, int]]:
    """Seek to where each partition of the error is to be read on; counted and logged: (from, to) offsets.

    The consumer must have no auto_offset_reset, or it would go there without a word. kept is where the reader
    has on record that it is, None: nowhere. Raises kafka.errors.KafkaError, and is then to be called again.

    Over what was deleted unread the partition goes on at its beginning, and `lost` counts the offsets in
    between. Of a log that was cut nothing can be lost but what the broker lost. It is read from where it was
    cut, if the broker tells; else from what is on record, if that is earlier; else from the beginning: what
    was written since must not be passed over, so what is left of the old records comes again.
    """
    steps = {}
    begins = consumer.beginning_offsets(list(_positions(consumer, error)))
    for partition, before in _positions(consumer, error).items():
        begin, on_record = begins[partition], kept.get(partition)
        where = {"topic": partition.topic, "partition": partition.partition, "from_offset": before}
        if before < begin:
            after, event = begin, "records were deleted from the topic before they were read"
            where["records"] = begin - before
            lost.inc(begin - before)
            advice = (
                "raise retention.ms or retention.bytes of the topic; a reader restored from a backup cannot "
                "read what the topic keeps no more"
            )
        else:
            cut = error.divergent_offsets[partition] if isinstance(error, LogTruncationError) else None
            known = cut.offset if cut is not None else on_record
            after = max(begin, known) if known is not None and known < before else begin
            metrics.TRUNCATIONS.inc()
            event = "the topic ends before the last offset read"
            advice = "its end was lost, or an earlier time restored; what comes again is answered again"
        log.error(event, **where, to_offset=after, advice=advice)
        consumer.seek(partition, after)
        steps[partition] = before, after
    return steps


def _positions(consumer: Any, error: OffsetOutOfRangeError | LogTruncationError) -> dict[TopicPartition, int]:
    """The offsets that were to be read next, of those partitions that are still this reader's."""
    assigned = consumer._subscription.assignment
    if isinstance(error, OffsetOutOfRangeError):
        return {at: offset for at, offset in error.args[0].items() if at in assigned}
    return {
        at: assigned[at].position.offset
        for at in error.divergent_offsets
        if at in assigned and assigned[at].position is not None
    }

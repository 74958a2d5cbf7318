"""Reads the media topic, or the past of another: a member of a group whose offsets the sink commits."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import structlog
from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.errors import (
    AuthorizationError,
    KafkaError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RetriableError,
)
from prometheus_client import Counter

from ingest import metrics
from ingest.kafka.access import REQUEST_TIMEOUT_S, as_refusal, kafka_options
from ingest.kafka.positions import SameTopic, TopicRenewedError, seek_past_gap
from ingest.kafka.sink import CommitError
from ingest.metrics import Place, Reach, reaches, records_behind
from ingest.records import InRecord, Position
from ingest.settings import IngestSettings

log = structlog.get_logger()

# what a killed consumer holds waits for this long
_SESSION_TIMEOUT_MS = 9_000
# Of a partition, in one fetch: small records come by hundreds, and the largest one by one.
FETCH_BYTES = 4 << 20


@dataclass(frozen=True)
class ReplayRange:
    """Another topic than the media's, and where a group without offsets begins: Unix time, milliseconds.

    lost counts what was deleted before it was read.
    """

    topic: str
    since_ms: int
    lost: Counter


class Source:
    """A consumer that never commits by itself what was read; a context manager, for one thread.

    It reads committed records only, from the group's offsets, or from the beginning (of the past: its
    time) where the group has none, or those of another topic of this name. The offsets belong into the sink's
    transaction, with `group_metadata()` taken in the same round as the records, so that the broker
    refuses them once a partition has moved on. What the topic deleted before it was read is counted,
    logged and stepped over, which is committed, so that the group counts it once.
    """

    def __init__(self, settings: IngestSettings, group: str, past: ReplayRange | None = None) -> None:
        self._past, self._options = past, kafka_options(settings)
        self._topic = settings.media_topic if past is None else past.topic
        self._timeout_ms = int(REQUEST_TIMEOUT_S * 1000)
        self._consumer = committed_reader(settings, group, max(FETCH_BYTES, settings.max_record_bytes))
        self._same_topic = SameTopic(self._consumer, self._topic, self._timeout_ms)
        self._placed = False
        self._paused = False
        self._consumer.subscribe([self._topic], listener=_Rebalanced(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self, max_records: int, timeout_s: float) -> list[InRecord]:
        """Read at most max_records, waiting at most about timeout_s seconds; in order a partition.

        To be called all the time, also while paused, or the group gives the partitions to another.
        A corrupt batch is left out (see record_batches). While the broker is away, nothing comes: the client
        keeps silent about that, except where the line breaks while it looks for the group's coordinator.
        Raises kafka.errors.KafkaError, which is a BrokerRefusedError where an ACL is in the way, and a
        TopicRenewedError as soon as the broker has said that the topic was made anew. After that, or any
        that is not retriable, this source is of no more use.
        Whether these records are of the topic is known once `offsets_after` has given their offsets.
        """
        try:
            polled = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=max_records)
        except AuthorizationError as error:
            raise as_refusal(error, self._options) from error
        except NoOffsetForPartitionError:
            self._placed = False
        except (OffsetOutOfRangeError, LogTruncationError) as error:
            if self._placed:
                self._step_over(error)
                return []
        except RetriableError as error:
            log.warning("the broker does not answer, trying again", error=str(error))
            return []
        if not self._placed:
            self._place()
            return []
        if polled:
            self._same_topic.ask()
        reached = reaches(self._consumer)
        records = in_records(polled, reached)
        if self._past is None:
            metrics.MEDIA.inc(len(records))
            metrics.MEDIA_BYTES.inc(sum(len(record.value or b"") for record in records))
            metrics.LAG.set(records_behind(reached))
            metrics.LAG_SECONDS.on_poll(records, reached)
        return records

    def offsets_after(self, records: list[InRecord]) -> dict[Place, Position]:
        """Give, by (topic, partition), the position to commit when all these records are done.

        It waits until the broker has said of which topic they are; any thread may call it. Raises CommitError
        (retryable: rewind) where it does not, and TopicRenewedError.
        """
        try:
            self._same_topic.confirm()
        except TopicRenewedError:
            raise
        except KafkaError as error:
            raise CommitError(f"the broker does not tell which topic it is: {error}") from error
        after: dict[Place, Position] = {}
        for record in records:
            at = record.topic, record.partition
            before = after.get(at, Position(0)).offset
            after[at] = Position(max(before, record.next_offset), self._same_topic.topic_id)
        return after

    def position(self) -> dict[Place, Position]:
        """Give, by (topic, partition), the position to commit when all that was polled is done.

        Other than `offsets_after` it has the partitions, too, of which nothing came: their ends are known to
        be reached. Waits and raises as that does.
        """
        self.offsets_after([])
        if not self._placed:
            return {}
        assigned = self._consumer._subscription.assignment.items()
        return {
            (at.topic, at.partition): Position(state.position.offset, self._same_topic.topic_id)
            for at, state in list(assigned)
            if state.position is not None
        }

    def group_metadata(self) -> Any:
        return self._consumer.group_metadata()

    def rewind(self) -> None:
        """Go back to what the group has committed, after a transaction that failed.

        The broker is asked, since a commit without an answer may have happened. Call it once the sink
        has recovered: by then that transaction is decided. Raises kafka.errors.KafkaError, retryable,
        where the broker does not answer.
        """
        for partition in self._consumer.assignment():
            committed = self._fetch_committed(partition)
            if committed is None:
                self._seek_to_start(partition)
            elif not Position(committed.offset, committed.metadata or None).is_of(self._same_topic.topic_id):
                where = {"topic": partition.topic, "partition": partition.partition}
                event = "the topic was made anew and is read from its beginning"
                log.warning(event, **where, committed=committed.offset)
                self._seek_to_start(partition)
            else:
                self._consumer.seek(partition, committed.offset)
                metrics.LAG_SECONDS.on_answers({(partition.topic, partition.partition): committed.offset})
        self._placed = True

    def _seek_to_start(self, partition: TopicPartition) -> None:
        if self._past is None:
            self._consumer.seek_to_beginning(partition)
            return
        end = self._consumer.end_offsets([partition], timeout_ms=self._timeout_ms)[partition]
        since = {partition: self._past.since_ms}
        first = self._consumer.offsets_for_times(since, timeout_ms=self._timeout_ms)[partition]
        self._consumer.seek(partition, end if first is None else first.offset)

    def _fetch_committed(self, partition: TopicPartition) -> Any:
        return self._consumer.committed(partition, metadata=True, timeout_ms=self._timeout_ms)

    def _step_over(self, error: OffsetOutOfRangeError | LogTruncationError) -> None:
        """Go to where the topic can be read on; where the broker does not answer, the next poll does it."""
        try:
            if not self._is_same_topic():
                return
            committed = {at: self._fetch_committed(at) for at in self._consumer.assignment()}
            kept = {at: None if position is None else position.offset for at, position in committed.items()}
            lost = metrics.LOST if self._past is None else self._past.lost
            steps = seek_past_gap(self._consumer, error, kept, lost)
        except RetriableError as late:
            log.warning("the broker does not list the topic's partitions, trying again", error=str(late))
            return
        for at, (before, after) in steps.items():
            # Where less is on record, a batch from before the step is under way, and its answer may yet fail.
            if kept[at] == before:
                with contextlib.suppress(KafkaError):  # a rebalance: whoever has it next counts it again
                    offset = OffsetAndMetadata(after, self._same_topic.topic_id or "", -1)
                    self._consumer.commit({at: offset}, timeout_ms=self._timeout_ms)

    def _place(self) -> None:
        """Go to where the group's offsets say; the client itself would take any for this topic's."""
        try:
            if self._is_same_topic():
                self.rewind()
        except RetriableError as error:
            # The next poll tries again.
            log.warning("the broker does not tell the group's offsets, trying again", error=str(error))

    def _is_same_topic(self) -> bool:
        """Whether the broker says now that the topic is the one that was read before; False: it is not known.

        Raises TopicRenewedError.
        """
        try:
            self._same_topic.ask()
            self._same_topic.confirm()
        except TopicRenewedError:
            raise
        except KafkaError as error:
            log.warning("the broker does not tell which topic it is, trying again", error=str(error))
            return False
        return True

    def assignment(self) -> set[Place]:
        return {(partition.topic, partition.partition) for partition in self._consumer.assignment()}

    def is_member(self) -> bool:
        """Whether the group has let this member in, be it with partitions or as one in reserve."""
        return bool(self._consumer.group_metadata().generation_id >= 0)

    def pause(self) -> None:
        """Fetch nothing more, but stay a member; holds through rebalances until resume()."""
        self._paused = True
        self._consumer.pause(*self._consumer.assignment())

    def resume(self) -> None:
        self._paused = False
        self._consumer.resume(*self._consumer.assignment())

    def lag(self) -> int:
        """Count the records of the assigned partitions that are not read yet, as of the last fetch."""
        return records_behind(reaches(self._consumer))

    def close(self) -> None:
        """Leave the group, so that another member takes the partitions at once."""
        self._consumer.close()


def committed_reader(settings: IngestSettings, group: str | None, fetch_bytes: int) -> KafkaConsumer:
    """Give a consumer of committed records that places nothing and commits nothing by itself.

    fetch_bytes: the most that one fetch brings of a partition. Raises kafka.errors.KafkaError.
    """
    return KafkaConsumer(
        **kafka_options(settings),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="none",  # else the client steps over deleted records without a word
        isolation_level="read_committed",
        allow_auto_create_topics=False,
        request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
        bootstrap_timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
        # The heartbeat is a thread of its own.
        session_timeout_ms=_SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=_SESSION_TIMEOUT_MS // 3,
        max_partition_fetch_bytes=fetch_bytes,
    )


def in_records(
    polled: Mapping[TopicPartition, Sequence[Any]], reached: Mapping[Place, Reach]
) -> list[InRecord]:
    """Give a poll's records; `reached` says how far it went beyond the last record of each partition."""
    records = []
    for partition, batch in polled.items():
        for record in batch:
            passed = 0
            if record is batch[-1] and (reach := reached.get((partition.topic, partition.partition))):
                passed = max(0, reach.next - record.offset - 1)
            at_ms = -1 if record.timestamp is None else record.timestamp
            at = record.topic, record.partition, record.offset, at_ms
            records.append(InRecord(*at, record.key, record.value, tuple(record.headers), passed))
    return records


class _Rebalanced(ConsumerRebalanceListener):  # type: ignore[misc]
    """Forgets positions before a rebalance, and pauses what it brings while the source is paused."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        log.info("partitions revoked", partitions=sorted(partition.partition for partition in revoked))
        # kafka-python keeps the position of a partition that it has before and after. What another
        # member committed in between, or what this one took and may not commit any more, would be
        # done twice or left out; so each is read from the group's offsets, as Java's client does.
        self._source._consumer._subscription.assign_from_subscribed([])

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        log.info("partitions assigned", partitions=sorted(partition.partition for partition in assigned))
        if self._source._past is None:
            metrics.LAG_SECONDS.assign((partition.topic, partition.partition) for partition in assigned)
        self._source._placed = False
        if self._source._paused:
            self._source.pause()

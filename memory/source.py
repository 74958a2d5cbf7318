"""Reads the unknowns topic from where the database says, whatever Kafka's own offsets are."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import structlog
from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import AuthorizationError

from ingest.access import refused
from ingest.lag import reaches, records_behind
from ingest.records import InRecord, Position
from ingest.settings import IngestSettings, kafka_options
from ingest.source import SESSION_TIMEOUT_MS, fresh_topic_id
from memory import metrics
from memory.settings import MemorySettings

log = structlog.get_logger()


class UnknownsSource:
    """A member of the memory's consumer group; a context manager, for one thread.

    stored gives where to read on by (topic, partition). It is asked whenever partitions were assigned, the
    topic was made anew, and on `rewind`; Kafka keeps no offsets for this group.
    """

    def __init__(
        self,
        ingest: IngestSettings,
        settings: MemorySettings,
        stored: Callable[[], Mapping[tuple[str, int], Position]],
    ) -> None:
        """Join the group. Raises kafka.errors.KafkaError."""
        self._stored, self._options = stored, kafka_options(ingest)
        self._timeout_ms = int(settings.poll_timeout_s * 1000)
        self._request_timeout_ms = int(ingest.request_timeout_s * 1000)
        self._most = settings.max_batch_messages
        self._topic = settings.unknowns_topic
        self.topic_id: str | None = None
        """The broker's id of the topic that was read last; None where it gives none."""
        self._misplaced = False
        self._told: set[tuple[TopicPartition, Position]] = set()
        self._consumer = KafkaConsumer(
            **self._options,
            group_id=settings.group_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            allow_auto_create_topics=False,
            request_timeout_ms=int(ingest.request_timeout_s * 1000),
            bootstrap_timeout_ms=int(ingest.request_timeout_s * 1000),
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=SESSION_TIMEOUT_MS // 3,
            max_partition_fetch_bytes=4 * ingest.max_record_bytes,
        )
        self._consumer.subscribe([settings.unknowns_topic], listener=_Assigned(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def poll(self) -> list[InRecord]:
        """Return the next messages, waiting at most the poll timeout; in order by partition.

        Raises kafka.errors.KafkaError, and whatever `stored` raises.
        """
        try:
            polled = self._consumer.poll(timeout_ms=self._timeout_ms, max_records=self._most)
        except AuthorizationError as error:
            raise refused(error, self._options) from error
        if polled:
            fresh_topic_id(self._consumer, self._topic, self._request_timeout_ms)
        if self._misplaced or self._current_id() != self.topic_id:
            # What was just fetched is from Kafka's idea of a position, or from a topic that is no more.
            self.rewind()
            return []
        records = [
            InRecord(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, tuple(r.headers))
            for batch in polled.values()
            for r in batch
        ]
        reached = reaches(self._consumer)
        metrics.LAG.set(records_behind(reached))
        metrics.LAG_SECONDS.polled(records, reached)
        return records

    def rewind(self) -> None:
        """Go to where the stored positions say; raises what `stored` does, and kafka.errors.KafkaError.

        To the beginning where none is stored, or one of another topic that had this name.
        """
        self._misplaced = True
        self.topic_id = self._current_id()
        stored = self._stored()
        partitions = self._consumer.assignment()
        begins = self._consumer.beginning_offsets(partitions) if partitions else {}
        for partition in partitions:
            position = stored.get((partition.topic, partition.partition))
            if position is None:
                self._consumer.seek_to_beginning(partition)
            elif not position.is_of(self.topic_id):
                log.warning("the topic was made anew and is read from its beginning", partition=partition)
                self._consumer.seek_to_beginning(partition)
            else:
                lost = begins[partition] - position.offset
                if lost > 0 and (partition, position) not in self._told:
                    self._told.add((partition, position))
                    metrics.LOST.inc(lost)
                    log.error(
                        "messages were deleted from the topic before they were read",
                        partition=partition,
                        messages=lost,
                        advice="raise retention.ms of the topic; a memory restored from a backup cannot "
                        "read what the topic keeps no more",
                    )
                self._consumer.seek(partition, position.offset)
        self._misplaced = False

    def _current_id(self) -> str | None:
        found = self._consumer._cluster.topic_id(self._topic)
        # While the topic is gone, it is still the old one.
        return self.topic_id if found is None else str(found)

    def joined(self) -> bool:
        """Whether the group has let this member in, be it with partitions or as one in reserve."""
        return bool(self._consumer.group_metadata().generation_id >= 0)


class _Assigned(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes that positions are not the database's. The client swallows errors here, so it does no more."""

    def __init__(self, source: UnknownsSource) -> None:
        self._source = source

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing to finish: a batch is over before the next poll."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._source._misplaced = True
        metrics.LAG_SECONDS.assigned((partition.topic, partition.partition) for partition in assigned)

"""Reads the unknowns topic from where the database says, whatever Kafka's own offsets are."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.errors import AuthorizationError

from ingest.access import refused
from ingest.lag import reaches, records_behind
from ingest.records import InRecord
from ingest.settings import IngestSettings, kafka_options
from ingest.source import SESSION_TIMEOUT_MS
from memory import metrics
from memory.settings import MemorySettings


class UnknownsSource:
    """A member of the memory's consumer group; a context manager, for one thread.

    stored gives the next offset to read by (topic, partition). It is asked whenever partitions
    were assigned, and on `rewind`; Kafka keeps no offsets for this group.
    """

    def __init__(
        self,
        ingest: IngestSettings,
        settings: MemorySettings,
        stored: Callable[[], Mapping[tuple[str, int], int]],
    ) -> None:
        """Join the group. Raises kafka.errors.KafkaError."""
        self._stored, self._options = stored, kafka_options(ingest)
        self._timeout_ms = int(settings.poll_timeout_s * 1000)
        self._most = settings.max_batch_messages
        self._misplaced = False
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
        if self._misplaced:
            # What was just fetched is from Kafka's idea of a position.
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
        """Go to the stored offsets, or to the beginning where none is stored; raises what `stored` does."""
        self._misplaced = True
        stored = self._stored()
        for partition in self._consumer.assignment():
            offset = stored.get((partition.topic, partition.partition))
            if offset is None:
                self._consumer.seek_to_beginning(partition)
            else:
                self._consumer.seek(partition, offset)
        self._misplaced = False

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

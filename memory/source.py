"""Reads a topic from where the database says, whatever Kafka's own offsets are."""

from dataclasses import dataclass
from typing import Any, Self

import structlog
from kafka import ConsumerRebalanceListener
from kafka.errors import (
    AuthorizationError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from prometheus_client import Counter, Gauge

from detector.records import UNKNOWNS
from ingest.kafka.access import REQUEST_TIMEOUT_S, as_refusal, kafka_options
from ingest.kafka.positions import fresh_topic_id, seek_past_gap
from ingest.kafka.source import FETCH_BYTES, committed_reader, in_records
from ingest.metrics import Lag, reaches, records_behind
from ingest.records import InRecord, Position
from ingest.settings import IngestSettings
from memory import metrics
from memory.settings import MemorySettings
from memory.store import Store, load_positions, save_offsets

RETRY_INTERVAL_S = 2.0
"""Pause after Kafka or the database failed: a broker that restarts is met again within seconds."""
_POLL_TIMEOUT_S = 1.0
"""Longest wait for messages before other duties."""

log = structlog.get_logger()


@dataclass(frozen=True)
class TopicReading:
    """A topic to read, its group, the records of a batch, and the metrics of its progress."""

    topic: str
    group_id: str
    max_records: int
    lag: Gauge
    lag_seconds: Lag
    lost: Counter


def unknowns(ingest: IngestSettings, settings: MemorySettings) -> TopicReading:
    """The topic of unknowns, which the memory remembers."""
    return TopicReading(
        ingest.topic(UNKNOWNS),
        settings.group_id,
        settings.max_batch_messages,
        metrics.LAG,
        metrics.LAG_SECONDS,
        metrics.LOST,
    )


class StoredSource:
    """A member of one of the memory's consumer groups; a context manager, for one thread.

    Where to read on is in the memory's database, which is asked whenever partitions were assigned, the topic
    was made anew, and on `rewind`; Kafka keeps no offsets for this group. Where the topic has no longer what
    is stored, the offsets to read on from are stored: so that is counted once.
    """

    def __init__(self, ingest: IngestSettings, reading: TopicReading, store: Store) -> None:
        """Join the group. Raises kafka.errors.KafkaError."""
        self._store, self._options = store, kafka_options(ingest)
        self._timeout_ms = int(_POLL_TIMEOUT_S * 1000)
        self._request_timeout_ms = int(REQUEST_TIMEOUT_S * 1000)
        self._reading = reading
        self.topic_id: str | None = None
        """The broker's id of the topic that was read last; None where it gives none."""
        self._misplaced = False
        self._consumer = committed_reader(ingest, reading.group_id, FETCH_BYTES)
        self._consumer.subscribe([reading.topic], listener=_Assigned(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def poll(self) -> list[InRecord]:
        """Return the next messages, waiting at most the poll timeout; in order by partition.

        Raises kafka.errors.KafkaError and StoreUnavailableError.
        """
        polled, out_of_range = {}, None
        try:
            polled = self._consumer.poll(timeout_ms=self._timeout_ms, max_records=self._reading.max_records)
        except AuthorizationError as error:
            raise as_refusal(error, self._options) from error
        except NoOffsetForPartitionError:
            self._misplaced = True  # Kafka keeps none
        except (OffsetOutOfRangeError, LogTruncationError) as error:
            out_of_range = error
        if polled or out_of_range:
            fresh_topic_id(self._consumer, self._reading.topic, self._request_timeout_ms)
        if self._misplaced or self._current_id() != self.topic_id:
            # What was just fetched is from Kafka's idea of a position, or from a topic that is no more.
            self.rewind()
            return []
        if out_of_range:
            self._step_over(out_of_range)
            return []
        reached = reaches(self._consumer)
        records = in_records(polled, reached)
        self._reading.lag.set(records_behind(reached))
        self._reading.lag_seconds.on_poll(records, reached)
        return records

    def beginnings(self) -> dict[int, int]:
        """Return the first offset that the topic still has, by partition. Raises kafka.errors.KafkaError."""
        starts = self._consumer.beginning_offsets(list(self._consumer.assignment()))
        return {at.partition: offset for at, offset in starts.items()}

    def rewind(self) -> None:
        """Go to where the stored positions say: to the beginning where none is, or one of another topic.

        Raises StoreUnavailableError and kafka.errors.KafkaError.
        """
        self._misplaced = True
        self.topic_id = self._current_id()
        stored = self._stored_positions()
        for partition in self._consumer.assignment():
            position = stored.get((partition.topic, partition.partition))
            if position is None:
                self._consumer.seek_to_beginning(partition)
            elif not position.is_of(self.topic_id):
                log.warning("the topic was made anew and is read from its beginning", partition=partition)
                self._consumer.seek_to_beginning(partition)
            else:
                self._consumer.seek(partition, position.offset)
        self._misplaced = False

    def _step_over(self, error: OffsetOutOfRangeError | LogTruncationError) -> None:
        stored = self._stored_positions()
        positions = {at: stored.get((at.topic, at.partition)) for at in self._consumer.assignment()}
        kept = {at: None if position is None else position.offset for at, position in positions.items()}
        steps = seek_past_gap(self._consumer, error, kept, self._reading.lost)
        after = {(at.topic, at.partition): end for at, (_, end) in steps.items()}
        with self._store.write_unversioned() as connection:
            save_offsets(connection, after, self.topic_id)

    def _stored_positions(self) -> dict[tuple[str, int], Position]:
        with self._store.read() as connection:
            return load_positions(connection)

    def _current_id(self) -> str | None:
        topic_id = self._consumer._cluster.topic_id(self._reading.topic)
        # While the topic is gone, it is still the old one.
        return self.topic_id if topic_id is None else str(topic_id)

    def is_member(self) -> bool:
        """Whether the group has let this member in, be it with partitions or as one in reserve."""
        return bool(self._consumer.group_metadata().generation_id >= 0)


class _Assigned(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes that positions are not the database's. The client swallows errors here, so it does no more."""

    def __init__(self, source: StoredSource) -> None:
        self._source = source

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing to finish: a batch is over before the next poll."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._source._misplaced = True
        self._source._reading.lag_seconds.assign(
            (partition.topic, partition.partition) for partition in assigned
        )

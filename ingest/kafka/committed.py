"""A consumer of committed records alone, which it gives as this project's records."""

from collections.abc import Iterable, Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from ingest.kafka.access import REQUEST_TIMEOUT_S, kafka_options
from ingest.metrics import Place, Reach
from ingest.records import InRecord
from ingest.settings import IngestSettings

# what a killed consumer holds waits for this long
_SESSION_TIMEOUT_MS = 9_000
# Of a partition, in one fetch: small records come by hundreds, and the largest one by one.
FETCH_BYTES = 4 << 20


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
    polled: Mapping[TopicPartition, Iterable[Any]], reached: Mapping[Place, Reach]
) -> list[InRecord]:
    """Give a poll's records; `reached` says how far it went beyond the last record of each partition."""
    records = []
    for partition, batch in polled.items():
        fetched = list(batch)
        for record in fetched:
            passed = 0
            if record is fetched[-1] and (reach := reached.get((partition.topic, partition.partition))):
                passed = max(0, reach.next - record.offset - 1)
            at_ms = -1 if record.timestamp is None else record.timestamp
            at = record.topic, record.partition, record.offset, at_ms
            records.append(InRecord(*at, record.key, record.value, tuple(record.headers), passed))
    return records

"""How far each consumer group is behind, per partition, by the broker's own books."""

from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError
from kafka.protocol.consumer.offsets import IsolationLevel

from deploy.api_records import PartitionLag
from deploy.reach import absent


class LagError(Exception):
    """The broker could not be asked; retryable."""


def group_lag(
    options: Mapping[str, Any],
    group: str,
    topic: str,
    timeout_s: float,
    known: Mapping[int, int] | None = None,
) -> list[PartitionLag]:
    """How far `group` is behind in each partition of `topic`; raises LagError.

    known: the next offset by partition of a group that keeps its offsets elsewhere than in Kafka.
    Only records of committed transactions count. A transaction's end takes an offset of its own,
    so a group that read everything may still stand one offset before the end: that is no lag, and
    is shown as none.
    """
    if problem := absent(options, timeout_s):
        raise LagError(problem)
    timeout_ms = int(timeout_s * 1000)
    try:
        admin = KafkaAdminClient(
            **options,
            bootstrap_timeout_ms=timeout_ms,
            request_timeout_ms=timeout_ms,
            client_id="forgewatch-lag",
        )
    except KafkaError as error:
        raise LagError(f"cannot reach the broker: {error}") from error
    try:
        (found,) = admin.describe_topics([topic])
        if found["error_code"]:
            raise LagError(f"there is no topic {topic}")
        partitions = [TopicPartition(topic, part["partition_index"]) for part in found["partitions"]]
        if known is None:
            books = admin.list_group_offsets({group: partitions}).get(group, {})
            known = {part.partition: entry.offset for part, entry in books.items() if entry.offset >= 0}
        ends = _offsets(admin, partitions, OffsetSpec.LATEST)
        starts = _offsets(admin, partitions, OffsetSpec.EARLIEST)
    except KafkaError as error:
        raise LagError(f"cannot ask the broker: {error}") from error
    finally:
        admin.close()
    return [
        PartitionLag(
            group=group,
            topic=topic,
            partition=part.partition,
            committed=known.get(part.partition),
            end=ends[part],
            lag=max(0, ends[part] - max(known.get(part.partition, 0), starts[part])),
        )
        for part in sorted(partitions)
    ]


def _offsets(admin: Any, partitions: list[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
    found = admin.list_partition_offsets(
        dict.fromkeys(partitions, spec), isolation_level=IsolationLevel.READ_COMMITTED
    )
    return {part: entry.offset for part, entry in found.items()}

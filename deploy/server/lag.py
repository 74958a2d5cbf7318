"""How far each consumer group is behind, per partition, by the broker's own books."""

import time
from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import CoordinatorNotAvailableError, KafkaError
from kafka.protocol.consumer.offsets import IsolationLevel

from deploy.client.records import PartitionLag
from ingest.kafka.access import barred

_PROBE_S = 2.0


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
    lag counts offsets, some of which hold the end of a transaction and no record; where nothing
    but such ends is left, it is 0. Transactions that are still open do not count.
    """
    if problem := barred(options, timeout_s):
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
            books = _books(admin, group, partitions, timeout_s)
            known = {part.partition: entry.offset for part, entry in books.items() if entry.offset >= 0}
        ends = _offsets(admin, partitions, OffsetSpec.LATEST)
        starts = _offsets(admin, partitions, OffsetSpec.EARLIEST)
    except KafkaError as error:
        raise LagError(f"cannot ask the broker: {error}") from error
    finally:
        admin.close()
    left = {part: max(known.get(part.partition, 0), starts[part]) for part in partitions}
    left = {part: position for part, position in left.items() if position < ends[part]}
    held = _with_records(options, left, ends, timeout_s) if left else set()
    return [
        PartitionLag(
            group=group,
            topic=topic,
            partition=part.partition,
            committed=known.get(part.partition),
            end=ends[part],
            lag=ends[part] - left[part] if part in held else 0,
        )
        for part in sorted(partitions)
    ]


def _with_records(
    options: Mapping[str, Any],
    left: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    timeout_s: float,
) -> set[TopicPartition]:
    """Those partitions in which a record lies between the position `left` and the end.

    Where the time runs out before that is known, the partition counts as one of them.
    """
    try:
        consumer = KafkaConsumer(
            **options,
            group_id=None,
            isolation_level="read_committed",
            enable_auto_commit=False,
            bootstrap_timeout_ms=int(timeout_s * 1000),
            max_partition_fetch_bytes=65_536,
        )
    except KafkaError as error:
        raise LagError(f"cannot reach the broker: {error}") from error
    open_, held = set(left), set()
    deadline = time.monotonic() + min(_PROBE_S, timeout_s)
    try:
        consumer.assign(list(left))
        for part, position in left.items():
            consumer.seek(part, position)
        while open_ and time.monotonic() < deadline:
            found = set(consumer.poll(timeout_ms=100))
            held |= found
            consumer.pause(*found)
            open_ = {part for part in open_ - found if consumer.position(part) < ends[part]}
        return held | open_
    except KafkaError as error:
        raise LagError(f"cannot ask the broker: {error}") from error
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)


def _books(admin: Any, group: str, partitions: list[TopicPartition], timeout_s: float) -> dict[Any, Any]:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found: dict[Any, Any] = admin.list_group_offsets({group: partitions}).get(group, {})
            return found
        except CoordinatorNotAvailableError:  # a broker that never had a group makes room for it first
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _offsets(admin: Any, partitions: list[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
    found = admin.list_partition_offsets(
        dict.fromkeys(partitions, spec), isolation_level=IsolationLevel.READ_COMMITTED
    )
    return {part: entry.offset for part, entry in found.items()}

"""How far a consumer group is behind in a topic, in records and in seconds."""

import time
from collections.abc import Mapping
from typing import Any

from kafka import TopicPartition
from kafka.protocol.consumer import IsolationLevel

from deploy.records import PartitionLag
from ingest.kafka.topics import open_reader
from ingest.metrics import MOST_AGE_S

_PROBE_S = 2.0
_CLOCKS_APART_S = 60.0


def group_lag(
    options: Mapping[str, Any],
    group: str,
    topic: str,
    timeout_s: float,
    known: Mapping[int, int] | None = None,
) -> list[PartitionLag]:
    """How far `group` is behind in each partition of `topic`, up to where its log ends; raises TopicError.

    known: the next offset by partition of a group that keeps its offsets elsewhere than in Kafka.
    lag counts offsets, some of which hold the end of a transaction and no record; where nothing
    but such ends is left, it is 0.
    """
    timeout_ms = int(timeout_s * 1000)
    more = {"group_id": group if known is None else None, "max_partition_fetch_bytes": 65_536}
    with open_reader(options, topic, timeout_s, **more) as (consumer, partitions):
        if known is None:
            offsets = {part.partition: consumer.committed(part, timeout_ms=timeout_ms) for part in partitions}
            known = {number: offset for number, offset in offsets.items() if offset is not None}
        starts = consumer.beginning_offsets(partitions, timeout_ms=timeout_ms)
        stable = consumer.end_offsets(partitions, timeout_ms=timeout_ms)
        # A reader of committed records is told that a log ends where a transaction is open.
        consumer._fetcher._isolation_level = IsolationLevel.READ_UNCOMMITTED
        ends = consumer.end_offsets(partitions, timeout_ms=timeout_ms)
        consumer._fetcher._isolation_level = IsolationLevel.READ_COMMITTED
        places = {part: max(known.get(part.partition, 0), starts[part]) for part in partitions}
        left = {part: position for part, position in places.items() if position < stable[part]}
        held = _with_records(consumer, left, stable, min(_PROBE_S, timeout_s)) if left else {}
    return [
        PartitionLag(
            group=group,
            topic=topic,
            partition=part.partition,
            committed=known.get(part.partition),
            end=ends[part],
            lag=max(0, ends[part] - places[part]) if part in held or stable[part] < ends[part] else 0,
            held_back=max(0, ends[part] - max(stable[part], places[part])),
            seconds=_age_s(held.get(part)),
        )
        for part in sorted(partitions)
    ]


def _with_records(
    consumer: Any, left: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], timeout_s: float
) -> dict[TopicPartition, int | None]:
    """Those partitions in which a record lies between the position `left` and the end, and when it came.

    In milliseconds since the epoch. Where the time runs out before that is known, the partition counts as
    one of them, with None. Raises KafkaError.
    """
    consumer.assign(list(left))
    for part, position in left.items():
        consumer.seek(part, position)
    unknown, held = set(left), dict[TopicPartition, int | None]()
    deadline = time.monotonic() + timeout_s
    while unknown and time.monotonic() < deadline:
        polled = {part: records[0].timestamp for part, records in consumer.poll(timeout_ms=100).items()}
        held |= polled
        consumer.pause(*polled)
        unknown = {part for part in unknown - polled.keys() if consumer.position(part) < ends[part]}
    return held | dict.fromkeys(unknown)


def _age_s(timestamp_ms: int | None) -> float | None:
    """How long ago that was; None: not known, or no producer's clock that is to be believed."""
    age_s = None if timestamp_ms is None else time.time() - timestamp_ms / 1000
    return max(0.0, age_s) if age_s is not None and -_CLOCKS_APART_S < age_s < MOST_AGE_S else None

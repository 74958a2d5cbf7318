"""A compacted topic of one partition, read as a whole: what it holds is a table."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from ingest.kafka.access import barred

_PARTITION = 0


class TopicError(Exception):
    """A topic cannot be read or written now; retryable."""


def read_all(options: Mapping[str, Any], topic: str, timeout_s: float) -> Iterator[Any]:
    """Yield every committed record of the topic, the oldest first, up to where it ends now.

    options are kafka-python's connection options (ingest.kafka.access.kafka_options). Raises TopicError
    where the broker is away, the topic does not exist, or timeout_s have passed.
    """
    if problem := barred(options, timeout_s):
        raise TopicError(problem)
    try:
        consumer = KafkaConsumer(
            **options,
            group_id=None,
            enable_auto_commit=False,
            isolation_level="read_committed",
            bootstrap_timeout_ms=int(timeout_s * 1000),
        )
    except KafkaError as error:
        raise TopicError(f"cannot reach the broker: {error}") from error
    try:
        if _PARTITION not in (consumer.partitions_for_topic(topic) or ()):
            raise TopicError(f"there is no topic {topic}")
        partition = TopicPartition(topic, _PARTITION)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition], timeout_ms=int(timeout_s * 1000))[partition]
        deadline = time.monotonic() + timeout_s
        while consumer.position(partition) < end:
            if time.monotonic() > deadline:
                raise TopicError(f"reading {topic} took longer than {timeout_s} s")
            for records in consumer.poll(timeout_ms=200).values():
                yield from records
    except KafkaError as error:
        raise TopicError(f"cannot read {topic}: {error}") from error
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)


def write(options: Mapping[str, Any], topic: str, key: bytes, value: bytes, timeout_s: float) -> None:
    """Write one record and wait until all replicas have it; raises TopicError."""
    timeout_ms = int(timeout_s * 1000)
    try:
        producer = KafkaProducer(
            **options, acks="all", bootstrap_timeout_ms=timeout_ms, max_block_ms=timeout_ms
        )
    except KafkaError as error:
        raise TopicError(f"cannot reach the broker: {error}") from error
    try:
        producer.send(topic, key=key, value=value, partition=_PARTITION).get(timeout=timeout_s)
    except KafkaError as error:
        raise TopicError(f"cannot write {topic}: {error}") from error
    finally:
        producer.close(timeout=1)

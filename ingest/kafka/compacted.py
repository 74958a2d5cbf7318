"""A compacted topic of one partition, read as a whole, as a table."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from ingest.kafka.access import auth_problem

_PARTITION = 0


class TopicError(Exception):
    """A topic cannot be read or written now; retryable."""


@contextmanager
def open_reader(
    options: Mapping[str, Any], topic: str, timeout_s: float, **more: Any
) -> Iterator[tuple[Any, list[TopicPartition]]]:
    """Yield a consumer of committed records, of no group, with nothing assigned, and the topic's partitions.

    options are kafka-python's connection options (ingest.kafka.access.kafka_options); `more` goes before
    them. Raises TopicError where the broker is away, the topic does not exist, or a request fails meanwhile.
    """
    if problem := auth_problem(options, timeout_s):
        raise TopicError(problem)
    own = {"group_id": None, "enable_auto_commit": False, "isolation_level": "read_committed"}
    try:
        consumer = KafkaConsumer(**{**options, **own, "bootstrap_timeout_ms": int(timeout_s * 1000), **more})
    except KafkaError as error:
        raise TopicError(f"cannot reach the broker: {error}") from error
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        if not partitions:
            raise TopicError(f"there is no topic {topic}: `forgewatch topics` makes it")
        yield consumer, partitions
    except KafkaError as error:
        raise TopicError(f"cannot read {topic}: {error}") from error
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)


def read_all(options: Mapping[str, Any], topic: str, timeout_s: float) -> Iterator[Any]:
    """Yield every committed record of the topic, the oldest first, up to where it ends now.

    Raises TopicError as `open_reader` does, or when timeout_s have passed.
    """
    partition, deadline = TopicPartition(topic, _PARTITION), time.monotonic() + timeout_s
    with open_reader(options, topic, timeout_s) as (consumer, _):
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition], timeout_ms=int(timeout_s * 1000))[partition]
        while consumer.position(partition) < end:
            if time.monotonic() > deadline:
                raise TopicError(f"reading {topic} took longer than {timeout_s} s")
            for records in consumer.poll(timeout_ms=200).values():
                yield from records


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

"""What tests write to a real broker, read from it, and await."""

import time
from collections.abc import Callable
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from ingest.kafka.source import Source
from ingest.records import InRecord


def await_that(
    holds: Callable[[], bool],
    timeout_s: float = 180,
    what: Callable[[], object] = lambda: None,
    every_s: float = 0.01,
) -> None:
    """Poll until it holds; what: said where it does not within the time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(every_s)


def produce(
    broker: str, topic: str, *values: bytes | None, key: bytes | None = None, partition: int = 0
) -> None:
    """Write values to a partition of a topic, each once the one before is there."""
    producer = KafkaProducer(bootstrap_servers=broker)
    for value in values:
        producer.send(topic, value, key, partition=partition).get(30)
    producer.close()


def take(source: Source, count: int) -> list[InRecord]:
    taken: list[InRecord] = []

    def come() -> bool:
        taken.extend(source.poll(count - len(taken), timeout_s=0.2))
        return len(taken) >= count

    await_that(come, what=lambda: f"{len(taken)} of {count} records came")
    return taken


def reader_of(broker: str, topic: str, isolation: str = "read_committed", **options: Any) -> KafkaConsumer:
    return KafkaConsumer(
        topic, bootstrap_servers=broker, auto_offset_reset="earliest", isolation_level=isolation, **options
    )


def first_of(broker: str, topic: str) -> Any:
    """The first committed record of a topic, once there is one."""
    reader = reader_of(broker, topic, consumer_timeout_ms=180_000)
    try:
        return next(reader)
    finally:
        reader.close()


def all_of(broker: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """Every record of a topic: what is committed now, and what comes within the next moment."""
    # The end of a transaction is written after its commit was answered.
    reader = reader_of(broker, topic, isolation, consumer_timeout_ms=1500)
    try:
        found = list(reader)
        ends = reader.end_offsets([TopicPartition(topic, n) for n in reader.partitions_for_topic(topic)])

        def at_the_end() -> bool:
            assigned = ends.keys() <= reader.assignment()
            return assigned and all(reader.position(at) >= end for at, end in ends.items())

        # A busy machine may take longer for the first of them.
        await_that(lambda: at_the_end() or bool(found.extend(reader)))
        return found
    finally:
        reader.close()

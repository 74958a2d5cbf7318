"""Creates the topics that are missing, and reads a compacted one of one partition as a whole, as a table.

A topic is made wide enough for everything that may have to be written.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import AuthorizationError, KafkaError, TopicAlreadyExistsError

from ingest.kafka.access import REQUEST_TIMEOUT_S, as_refusal, auth_problem, kafka_options, require_entry
from ingest.settings import IngestSettings


@dataclass(frozen=True)
class Topic:
    """A topic to be: max_record_bytes is the largest record (with its headers) that it takes."""

    name: str
    max_record_bytes: int
    partitions: int = 1
    compacted: bool = False


def ingest_topics(settings: IngestSettings, partitions: int) -> tuple[Topic, ...]:
    """Name the topics that ingest owns: media, and dead letters, which must take all of a medium more."""
    return (
        Topic(settings.media_topic, settings.max_media_bytes, partitions),
        Topic(settings.dead_letters_topic, settings.max_record_bytes, partitions),
    )


def ensure_topics(settings: IngestSettings, topics: Sequence[Topic], replication: int = 1) -> tuple[str, ...]:
    """Create those topics that do not exist; leave the others as they are. Returns the names created.

    Batches are stored uncompressed: media does not compress, and a batch that unpacks to a thousand
    times its size would be accepted by its packed size.

    Raises kafka.errors.KafkaError, which is a BrokerRefusedError where a setting or an ACL is in the way.
    """
    timeout_ms, options = int(REQUEST_TIMEOUT_S * 1000), kafka_options(settings)
    require_entry(options, REQUEST_TIMEOUT_S)
    admin = KafkaAdminClient(**options, request_timeout_ms=timeout_ms, bootstrap_timeout_ms=timeout_ms)
    try:
        present, created = set(admin.list_topics()), []
        for topic in [topic for topic in topics if topic.name not in present]:
            configs = {
                "max.message.bytes": str(topic.max_record_bytes),
                "compression.type": "uncompressed",
                "cleanup.policy": "compact" if topic.compacted else "delete",
            }
            new = NewTopic(topic.name, topic.partitions, replication, topic_configs=configs)
            try:
                admin.create_topics([new])
                created.append(topic.name)
            except TopicAlreadyExistsError:
                pass  # another process was quicker
            except AuthorizationError as error:
                raise as_refusal(error, options, topic.name) from error
        return tuple(created)
    finally:
        admin.close()


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
    waits = dict.fromkeys(("bootstrap_timeout_ms", "max_block_ms"), int(timeout_s * 1000))
    try:
        producer = KafkaProducer(**options, **waits, acks="all")
    except KafkaError as error:
        raise TopicError(f"cannot reach the broker: {error}") from error
    try:
        producer.send(topic, key=key, value=value, partition=_PARTITION).get(timeout=timeout_s)
    except KafkaError as error:
        raise TopicError(f"cannot write {topic}: {error}") from error
    finally:
        producer.close(timeout=1)

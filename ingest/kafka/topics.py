"""Creates the topics that are missing, wide enough for everything that may have to be written."""

from collections.abc import Sequence
from dataclasses import dataclass

from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import AuthorizationError, TopicAlreadyExistsError

from ingest.kafka.access import REQUEST_TIMEOUT_S, as_refusal, kafka_options, require_entry
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
        present = set(admin.list_topics())
        missing = [topic for topic in topics if topic.name not in present]
        created = []
        for topic in missing:
            new = NewTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=replication,
                topic_configs={
                    "max.message.bytes": str(topic.max_record_bytes),
                    "compression.type": "uncompressed",
                    "cleanup.policy": "compact" if topic.compacted else "delete",
                },
            )
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

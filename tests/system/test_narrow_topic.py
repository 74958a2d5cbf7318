"""A topic that takes less than the settings say: the record in the way is named, and the others go on."""

import uuid

import pytest
from kafka import KafkaConsumer

from ingest.kafka.sink import RecordTooLargeError, TransactionalSink
from ingest.kafka.topics import Topic, ensure_topics
from ingest.records import OutRecord
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system


def test_what_the_broker_finds_too_large_is_told_apart_and_nothing_of_its_transaction_is_committed(
    settings: IngestSettings,
) -> None:
    name = f"narrow-{uuid.uuid4().hex}"
    ensure_topics(settings, [Topic(name, 40_000)])
    small, large = OutRecord(name, b"small", b"v" * 10_000), OutRecord(name, b"large", b"v" * 60_000)
    with TransactionalSink(settings, f"slot-{name}") as sink:
        with pytest.raises(RecordTooLargeError, match="its topic takes less") as refused:
            sink.commit([small, large, small], {}, None)
        assert refused.value.record is large
        sink.commit([small], {}, None)
    consumer = KafkaConsumer(
        name,
        bootstrap_servers=settings.bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=1500,
    )
    assert [record.key for record in consumer] == [b"small"]
    consumer.close()

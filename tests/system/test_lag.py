"""The lag on a real broker, in records and in seconds."""

import time
import uuid

import pytest
from kafka import KafkaProducer

from ingest import metrics
from ingest.kafka.sink import TransactionalSink
from ingest.kafka.source import Source
from ingest.kafka.topics import ensure_topics, ingest_topics
from ingest.records import InRecord, OutRecord
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system


@pytest.fixture
def settings(broker: str) -> IngestSettings:
    name = uuid.uuid4().hex
    settings = IngestSettings(bootstrap_servers=broker, topic_prefix=name)
    ensure_topics(settings, ingest_topics(settings, partitions=2))
    return settings


def take(source: Source, count: int) -> list[InRecord]:
    taken: list[InRecord] = []
    deadline = time.monotonic() + 180
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} records came"
        taken += source.poll(count - len(taken), timeout_s=0.5)
    return taken


def commit(sink: TransactionalSink, source: Source, taken: list[InRecord]) -> None:
    sink.commit([], source.offsets_after(taken), source.group_metadata())


def waiting_s() -> float:
    age_s = metrics.LAG_SECONDS.seconds()
    assert age_s is not None
    return age_s


def test_the_lag_in_seconds_grows_while_nothing_is_answered_and_is_0_once_all_is(
    settings: IngestSettings,
) -> None:
    old = int((time.time() - 3600) * 1000)
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for partition in (0, 1):
        for number in range(2):
            producer.send(settings.media_topic, b"x", partition=partition, timestamp_ms=old + number)
    producer.close()
    with Source(settings, "group") as source, TransactionalSink(settings, "worker") as sink:
        taken = take(source, 3)
        assert 3600 <= waiting_s() < 3700
        commit(sink, source, taken)
        assert 3600 <= waiting_s() < 3700  # the fourth record is not even read
        taken = take(source, 1)
        before = waiting_s()
        assert before >= 3600
        while waiting_s() <= before:
            pass  # nothing is polled and no broker is asked
        commit(sink, source, taken)
        assert waiting_s() == 0


def test_a_source_that_has_read_a_transaction_to_its_end_is_not_behind(settings: IngestSettings) -> None:
    with TransactionalSink(settings, "producer") as sink:
        sink.commit([OutRecord(settings.media_topic, b"key", b"value")], {}, None)
    with Source(settings, "group") as source, TransactionalSink(settings, "worker") as sink:
        taken = take(source, 1)
        commit(sink, source, taken)
        deadline = time.monotonic() + 120
        while source.lag():
            assert time.monotonic() < deadline, "the end of the transaction counts as a record"
            source.poll(1, timeout_s=0.5)
        assert waiting_s() == 0

"""A source on a real broker: its lag, a narrow topic, a silent broker, a group that is formed anew."""

import time
import uuid

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaTimeoutError
from streams import all_of, await_that, take

from ingest import metrics
from ingest.kafka.positions import SameTopic, fresh_topic_id
from ingest.kafka.sink import CommitError, RecordTooLargeError, TransactionalSink
from ingest.kafka.source import Source
from ingest.kafka.topics import Topic, ensure_topics, ingest_topics
from ingest.records import OutRecord
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system


@pytest.fixture
def settings(broker):
    name = uuid.uuid4().hex
    settings = IngestSettings(bootstrap_servers=broker, topic_prefix=name)
    ensure_topics(settings, ingest_topics(settings, partitions=2))
    return settings


def commit(sink, source, taken):
    sink.commit([], source.offsets_after(taken), source.group_metadata())


def waiting_s():
    age_s = metrics.LAG_SECONDS.seconds()
    assert age_s is not None
    return age_s


def test_the_lag_in_seconds_grows_while_nothing_is_answered_and_is_0_once_all_is(settings):
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


def test_a_source_that_has_read_a_transaction_to_its_end_is_not_behind(settings):
    with TransactionalSink(settings, "producer") as sink:
        sink.commit([OutRecord(settings.media_topic, b"key", b"value")], {}, None)
    with Source(settings, "group") as source, TransactionalSink(settings, "worker") as sink:
        taken = take(source, 1)
        commit(sink, source, taken)

        def caught_up():
            source.poll(1, timeout_s=0.5)
            return source.lag() == 0

        await_that(caught_up, what=lambda: "the end of the transaction counts as a record")
        assert waiting_s() == 0


def test_what_the_broker_finds_too_large_is_told_apart_and_nothing_of_its_transaction_is_committed(settings):
    name = f"narrow-{uuid.uuid4().hex}"
    ensure_topics(settings, [Topic(name, 40_000)])
    small, large = OutRecord(name, b"small", b"v" * 10_000), OutRecord(name, b"large", b"v" * 60_000)
    with TransactionalSink(settings, f"slot-{name}") as sink:
        with pytest.raises(RecordTooLargeError, match="its topic takes less") as refused:
            sink.commit([small, large, small], {}, None)
        assert refused.value.record is large
        sink.commit([small], {}, None)
    assert [record.key for record in all_of(settings.bootstrap_servers, name)] == [b"small"]


def test_what_came_while_no_broker_tells_its_topic_comes_again_once_and_in_order(broker, monkeypatch):
    name = uuid.uuid4().hex
    settings = IngestSettings(bootstrap_servers=broker, topic_prefix=name)
    ensure_topics(settings, ingest_topics(settings, partitions=2))
    producer = KafkaProducer(bootstrap_servers=broker)
    for number in range(12):
        producer.send(settings.media_topic, value=b"%d" % number, key=b"%d" % number)
    producer.close()
    with TransactionalSink(settings, f"slot-{name}") as sink, Source(settings, f"group-{name}") as source:
        deadline = time.monotonic() + 180
        first = take(source, 2)
        sink.commit([], source.offsets_after(first[:1]), source.group_metadata())

        def silent(*arguments):
            raise KafkaTimeoutError("no broker answers")

        with monkeypatch.context() as patched:
            patched.setattr(SameTopic, "confirm", silent)
            unsure = []
            while not unsure:
                assert time.monotonic() < deadline
                unsure = source.poll(2, timeout_s=0.5)
            with pytest.raises(CommitError, match="does not tell which topic"):
                source.offsets_after(unsure)
        source.rewind()
        first = first[:1]
        # What a worker does meanwhile where TorchServe is away: it polls to stay a member, and drops that.
        source.pause()
        assert source.poll(1, timeout_s=0.0) == []
        source.resume()
        batches = []
        while sum(map(len, batches)) < 11:
            assert time.monotonic() < deadline
            batches.append(source.poll(2, timeout_s=0.5))
        assert max(map(len, batches)) == 2
        assert source.poll(2, timeout_s=0.5) == []
        taken = first + [record for batch in batches for record in batch]
    assert sorted(int(record.value or b"") for record in taken) == list(range(12))
    for partition in (0, 1):
        offsets = [record.offset for record in taken if record.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_a_poll_that_ends_while_the_group_is_formed_anew_leaves_no_member_outside(broker):
    settings = IngestSettings(bootstrap_servers=broker, topic_prefix=uuid.uuid4().hex)
    topic = settings.media_topic
    ensure_topics(settings, [Topic(topic, 1_200_000)])
    with Source(settings, f"g-{uuid.uuid4().hex}") as source:

        def reads(partitions):
            source.poll(1, 0.5)
            return source.assignment() == {(topic, number) for number in range(partitions)}

        await_that(lambda: reads(1), 60)
        admin = KafkaAdminClient(bootstrap_servers=broker)
        admin.create_partitions({topic: 2})
        admin.close()
        coordinator = source._consumer._coordinator

        def changed():
            fresh_topic_id(source._consumer, topic, 10_000)
            return len(coordinator._metadata_snapshot[topic]) == 2

        await_that(changed, 60)
        source.poll(1, 0.0)
        await_that(lambda: coordinator._join_task is None or coordinator._join_task.is_done, 60)
        await_that(lambda: reads(2), 20)

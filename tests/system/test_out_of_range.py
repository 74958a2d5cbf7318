"""What a topic has no longer when it is to be read: counted and told, and read on where it can be."""

import time
import uuid
from dataclasses import replace

import pytest
import streams
from kafka import KafkaAdminClient, TopicPartition
from structlog.testing import capture_logs

from ingest import metrics
from ingest.kafka.sink import TransactionalSink
from ingest.kafka.source import Source
from ingest.kafka.topics import ensure_topics, ingest_topics
from ingest.records import OutRecord, Position
from ingest.settings import IngestSettings
from memory import metrics as memory_metrics
from memory.settings import MemorySettings
from memory.source import StoredSource, unknowns
from memory.store import Store, load_offsets, save_offsets

pytestmark = pytest.mark.system

LOST = "records were deleted from the topic before they were read"
TRUNCATED = "the topic ends before the last offset read"


@pytest.fixture
def ingest(broker):
    name = uuid.uuid4().hex
    made = IngestSettings(bootstrap_servers=broker, topic_prefix=name)
    ensure_topics(made, ingest_topics(made, partitions=1))
    return made


def produce(ingest, first, count):
    values = [str(number).encode() for number in range(first, first + count)]
    streams.produce(ingest.bootstrap_servers, ingest.media_topic, *values)


def delete_before(ingest, offset):
    """As retention does, at once; -1: all."""
    admin = KafkaAdminClient(bootstrap_servers=ingest.bootstrap_servers)
    admin.delete_records({TopicPartition(ingest.media_topic, 0): offset})
    admin.close()


def take(source, last):
    """Everything up to the record with this number."""
    found = []
    deadline = time.monotonic() + 180
    while not found or found[-1].value != str(last).encode():
        assert time.monotonic() < deadline, found
        found += source.poll(1, 0.2)
    return found


def numbers(records):
    return [int(record.value or b"") for record in records]


def answer(ingest, source, records):
    with TransactionalSink(ingest, f"t-{uuid.uuid4().hex}") as sink:
        sink.commit([], source.offsets_after(records), source.group_metadata())


def place_at(ingest, group, offset):
    """Have the group's offset there."""
    with Source(ingest, group) as source, TransactionalSink(ingest, f"t-{uuid.uuid4().hex}") as sink:
        while not (source.assignment() and source._same_topic.topic_id):
            source.poll(1, 0.1)
        at = {(ingest.media_topic, 0): Position(offset, source._same_topic.topic_id)}
        sink.commit([], at, source.group_metadata())


def lost():
    return metrics.LOST._value.get()


def truncations():
    return metrics.TRUNCATIONS._value.get()


def test_what_retention_removed_unread_is_counted_once_by_the_group_and_told(ingest):
    group = f"g-{uuid.uuid4().hex}"
    produce(ingest, 0, 3)
    with Source(ingest, group) as source:
        answer(ingest, source, take(source, 2))
    produce(ingest, 3, 7)
    delete_before(ingest, 8)
    before = lost()
    with capture_logs() as logs, Source(ingest, group) as source:
        assert numbers(take(source, 9)) == [8, 9]
    (told,) = (line for line in logs if line["event"] == LOST)
    said = {"topic": ingest.media_topic, "partition": 0, "from_offset": 3, "to_offset": 8, "records": 5}
    assert told.items() >= said.items()
    assert lost() - before == 5
    with Source(ingest, group) as source:  # started again before anything was answered
        assert numbers(take(source, 9)) == [8, 9]
    assert lost() - before == 5


def test_what_retention_removes_under_a_running_reader_is_counted_and_what_is_under_way_is_not(ingest):
    produce(ingest, 0, 3)
    group = f"g-{uuid.uuid4().hex}"
    before = lost()
    with Source(ingest, group) as source:
        under_way = take(source, 2)
        source.pause()
        produce(ingest, 3, 7)
        delete_before(ingest, 8)
        source.poll(1, 0.1)
        source.resume()
        rest = take(source, 9)
        # What was fetched before it was deleted is read.
        assert lost() - before == 7 - len(rest) > 0
        answer(ingest, source, under_way)
        answer(ingest, source, rest)
    with Source(ingest, group) as source:
        assert source.poll(1, 2.0) == []
    assert lost() - before == 7 - len(rest)


def test_ends_of_transactions_that_retention_removed_are_not_taken_for_records(ingest):
    group = f"g-{uuid.uuid4().hex}"
    before = lost()
    with Source(ingest, group) as source, TransactionalSink(ingest, "producer") as producer:
        for number in range(2):
            producer.commit([OutRecord(ingest.media_topic, None, str(number).encode())], {}, None)
        answer(ingest, source, take(source, 1))
    delete_before(ingest, -1)
    produce(ingest, 2, 1)
    with Source(ingest, group) as source:
        assert numbers(take(source, 2)) == [2]
    assert lost() == before


def test_an_offset_beyond_the_end_of_the_log_is_told_and_nothing_that_the_log_has_is_passed_over(ingest):
    group = f"g-{uuid.uuid4().hex}"
    produce(ingest, 0, 4)
    place_at(ingest, group, 50)
    before = truncations(), lost()
    with capture_logs() as logs, Source(ingest, group) as source:
        assert numbers(take(source, 3)) == [0, 1, 2, 3]
    assert (truncations(), lost()) == (before[0] + 1, before[1])
    (told,) = (line for line in logs if line["event"] == TRUNCATED)
    said = {"topic": ingest.media_topic, "partition": 0, "from_offset": 50, "to_offset": 0}
    assert told.items() >= said.items()


@pytest.mark.parametrize(
    ("stored", "read", "lost", "truncations"), [(1, [3], 2, 0), (50, [3], 0, 1), (3, [3], 0, 0)]
)
def test_the_memory_counts_it_once_and_records_its_place(ingest, stored, read, lost, truncations, sqlite_url):
    place, store = (ingest.media_topic, 0), Store(sqlite_url)
    with store.write_unversioned() as connection:
        save_offsets(connection, {place: stored})
    produce(ingest, 0, 4)
    delete_before(ingest, 3)
    memory = MemorySettings(group_id=f"g-{uuid.uuid4().hex}")
    before = memory_metrics.LOST._value.get(), metrics.TRUNCATIONS._value.get()
    for _ in range(2):  # the second one finds what the first one stored
        reading = replace(unknowns(ingest, memory), topic=ingest.media_topic)
        with StoredSource(ingest, reading, store) as source:
            found = []
            deadline = time.monotonic() + 180
            while not found:
                assert time.monotonic() < deadline
                found = source.poll()
            assert numbers(found) == read
            with store.read() as connection:
                assert load_offsets(connection)[place] == 3
        after = memory_metrics.LOST._value.get(), metrics.TRUNCATIONS._value.get()
        assert after == (before[0] + lost, before[1] + truncations)
    store.close()

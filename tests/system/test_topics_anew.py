"""Topics that are made anew under the same name, or restored: what they hold is read, whatever was stored."""

import os
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager, suppress

import httpx
import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError
from streams import await_that, produce, take
from verdicts import unknown_message

from deploy.local.processes import free_port
from detector.records import UNKNOWNS
from ingest.kafka.positions import TopicRenewedError
from ingest.kafka.sink import TransactionalSink
from ingest.kafka.source import Source
from ingest.kafka.topics import Topic, ensure_topics
from ingest.records import OutRecord, Position
from ingest.settings import IngestSettings
from memory import rows
from memory.settings import MemorySettings
from memory.store import Store, load_offsets, load_positions, save_offsets

pytestmark = pytest.mark.system

_GIVEN = ("group_id", "database_url", "crops_url", "index_path")


def make_anew(broker, ingest, topic):
    admin = KafkaAdminClient(bootstrap_servers=broker)
    admin.delete_topics([topic])
    await_that(lambda: topic not in admin.list_topics())
    admin.close()
    await_that(lambda: topic in ensure_topics(ingest, [Topic(topic, 1_200_000)]))


@pytest.fixture
def ingest(broker):
    name = uuid.uuid4().hex
    made = IngestSettings(bootstrap_servers=broker, topic_prefix=name)
    ensure_topics(made, [Topic(made.media_topic, 1_200_000), Topic(made.dead_letters_topic, 1_200_000)])
    return made


@pytest.fixture
def memory(ingest, tmp_path):
    name = uuid.uuid4().hex
    ensure_topics(ingest, [Topic(ingest.topic(UNKNOWNS), 1_200_000)])
    return MemorySettings(
        group_id=f"memory-{name}",
        database_url=f"sqlite:///{tmp_path}/memory.sqlite",
        crops_url=str(tmp_path / "crops"),
        index_path=tmp_path / "index",
    )


@contextmanager
def remembering(ingest, memory):
    port = free_port()
    settings = {
        "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": ingest.bootstrap_servers,
        "FORGEWATCH_INGEST_TOPIC_PREFIX": ingest.topic_prefix,
        "FORGEWATCH_MEMORY_METRICS_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    settings |= {f"FORGEWATCH_MEMORY_{name.upper()}": str(getattr(memory, name)) for name in _GIVEN}
    process = subprocess.Popen([sys.executable, "-m", "memory"], env=os.environ | settings)
    try:
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        process.terminate()
        process.wait()


def await_rows(store, count):
    deadline = time.monotonic() + 180
    while True:
        with store.read() as connection:
            found = [e.media_digest for e in rows.select_exemplars(connection)]
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, f"{len(found)} of {count} remembered"
        time.sleep(0.05)


@pytest.mark.parametrize("running", [False, True])
def test_an_unknowns_topic_made_anew_is_read_from_its_beginning(broker, ingest, memory, running):
    store = Store(memory.database_url)
    topic = ingest.topic(UNKNOWNS)
    produce(broker, topic, *[unknown_message(n, n) for n in range(5)])
    # The media topic was made anew as well: the same ids, other media.
    again = [unknown_message(n, 100 + n) for n in range(12)]
    with remembering(ingest, memory):
        await_rows(store, 5)
        if running:
            make_anew(broker, ingest, topic)
            produce(broker, topic, *again)
            await_rows(store, 17)
    if not running:
        make_anew(broker, ingest, topic)
        produce(broker, topic, *again)  # the stored offset 5 is one of the new topic's, too
        with remembering(ingest, memory):
            await_rows(store, 17)
    found = await_rows(store, 17)
    assert sorted(found) == sorted(f"{n:064x}" for n in (*range(5), *range(100, 112)))
    with store.read() as connection:
        assert list(load_offsets(connection).values()) == [12]
    store.close()


def test_a_memory_restored_to_an_earlier_time_reads_again_what_the_topic_still_has(broker, ingest, memory):
    store = Store(memory.database_url)
    topic = ingest.topic(UNKNOWNS)
    produce(broker, topic, *[unknown_message(n, n) for n in range(10)])
    with remembering(ingest, memory):
        await_rows(store, 10)
    with store.write() as connection:  # as it was after the first two
        position = load_positions(connection)[topic, 0]
        connection.exec_driver_sql("DELETE FROM exemplars WHERE id NOT IN ('media-0-0', 'media-0-1')")
        save_offsets(connection, {(topic, 0): 2}, position.topic_id)
    admin = KafkaAdminClient(bootstrap_servers=broker)
    admin.delete_records({TopicPartition(topic, 0): 6})
    admin.close()
    with remembering(ingest, memory) as address:
        found = await_rows(store, 6)
        said = httpx.get(address, trust_env=False).text
    assert sorted(found) == [f"{n:064x}" for n in (0, 1, 6, 7, 8, 9)]
    assert "forgewatch_memory_lost_total 4.0" in said  # told, not passed over
    store.close()


def answer(ingest, source, count):
    """Answer so many records of the media topic, as a worker does."""
    with TransactionalSink(ingest, f"t-{uuid.uuid4().hex}") as sink:
        left = count
        deadline = time.monotonic() + 180
        while left:
            assert time.monotonic() < deadline
            if records := source.poll(left, 0.2):
                letters = [OutRecord(ingest.dead_letters_topic, None, record.value, ()) for record in records]
                sink.commit(letters, source.offsets_after(records), source.group_metadata())
                left -= len(records)


def values_of(records):
    return [record.value or b"" for record in records]


def values(first, count):
    return [str(first + n).encode() for n in range(count)]


def test_a_media_topic_made_anew_under_a_running_worker_ends_it_and_the_next_one_reads_all(broker, ingest):
    produce(broker, ingest.media_topic, *values(0, 5))
    group = f"g-{uuid.uuid4().hex}"
    with Source(ingest, group) as source:
        answer(ingest, source, 5)
        make_anew(broker, ingest, ingest.media_topic)
        produce(broker, ingest.media_topic, *values(100, 12))
        with pytest.raises(TopicRenewedError, match="made anew"):
            answer(ingest, source, 1)
    with Source(ingest, group) as source:
        assert values_of(take(source, 12)) == values(100, 12)


def test_offsets_committed_for_another_topic_of_that_name_are_not_this_ones(broker, ingest):
    # As where the group's offsets come from a backup, or were written by the last transaction of a worker
    # that had read the topic before.
    produce(broker, ingest.media_topic, *values(0, 5))
    group = f"g-{uuid.uuid4().hex}"
    with Source(ingest, group) as source:
        answer(ingest, source, 5)
        read_before = source._same_topic.topic_id
    make_anew(broker, ingest, ingest.media_topic)
    produce(broker, ingest.media_topic, *values(100, 12))
    for of, expected in ((read_before, values(100, 12)), (None, values(105, 7))):
        with Source(ingest, group) as source:
            await_that(lambda source=source: source.poll(1, 0.1) or source.assignment())
            with TransactionalSink(ingest, f"t-{uuid.uuid4().hex}") as sink:
                at = {(ingest.media_topic, 0): Position(5, of)}
                sink.commit([], at, source.group_metadata())
        with Source(ingest, group) as source:
            assert values_of(take(source, len(expected))) == expected


def test_a_topic_that_is_gone_for_a_while_is_waited_for(broker, ingest):
    produce(broker, ingest.media_topic, *values(0, 1))
    with Source(ingest, f"g-{uuid.uuid4().hex}") as source:
        assert values_of(take(source, 1)) == values(0, 1)
        admin = KafkaAdminClient(bootstrap_servers=broker)
        admin.delete_topics([ingest.media_topic])
        admin.close()
        for _ in range(10):
            with suppress(UnknownTopicOrPartitionError, TopicAlreadyExistsError):
                assert source.poll(10, 0.2) == []

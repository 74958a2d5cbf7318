"""A verdict is found by its id as long as its topic keeps it: a real broker, and the watch that reads it."""

import threading
import uuid
from dataclasses import replace

import pytest
import streams
from kafka import KafkaAdminClient, TopicPartition
from streams import await_that
from verdicts import make_item, make_verdict

from deploy.lineage.back import read_verdict
from detector.records import VERDICTS
from ingest.kafka.topics import Topic, TopicError, ensure_topics
from ingest.settings import IngestSettings
from memory.settings import MemorySettings
from memory.shift import watch
from memory.shift.watch import keep_watch
from memory.store import Store
from memory.verdict_index import VerdictPlace, find_verdict

pytestmark = pytest.mark.system

_WAIT_S = 20.0


@pytest.fixture
def ingest(broker):
    made = IngestSettings(bootstrap_servers=broker, topic_prefix=uuid.uuid4().hex)
    ensure_topics(made, [Topic(made.topic(VERDICTS), 1_200_000)])
    return made


@pytest.fixture
def memory(tmp_path):
    return MemorySettings(
        verdicts_group_id=f"watch-{uuid.uuid4().hex}", database_url=f"sqlite:///{tmp_path}/memory.sqlite"
    )


@pytest.fixture
def find(ingest, memory):
    """Says where the verdict on the item at an offset lies."""
    store = Store(memory.database_url)

    def find(offset):
        with store.read() as connection:
            return find_verdict(connection, f"{ingest.media_topic}-0-{offset}", ingest.media_topic)

    yield find
    store.close()


def verdicts(ingest, *offsets):
    return [make_verdict(make_item(offset, topic=ingest.media_topic), label="real") for offset in offsets]


def test_what_the_watch_read_is_found_and_forgotten_with_the_topic(ingest, memory, find, monkeypatch):
    monkeypatch.setattr(watch, "_FORGET_INTERVAL_S", 0.5)
    topic, said = ingest.topic(VERDICTS), verdicts(ingest, 7, 8, 9)
    streams.produce(ingest.bootstrap_servers, topic, *(one.model_dump_json().encode() for one in said))
    stop = threading.Event()
    thread = threading.Thread(target=keep_watch, args=(ingest, memory, stop))
    thread.start()
    try:
        await_that(lambda: find(9) is not None)
        place = find(8)
        assert place is not None
        assert read_verdict(ingest, place, _WAIT_S) == said[1]
        assert read_verdict(ingest, replace(place, item_offset=6), _WAIT_S) is None  # another item's
        admin = KafkaAdminClient(bootstrap_servers=ingest.bootstrap_servers)
        admin.delete_records({TopicPartition(topic, 0): 2})
        admin.close()
        assert read_verdict(ingest, place, _WAIT_S) is None
        await_that(lambda: find(8) is None)
        assert find(9) is not None
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def test_a_broker_that_is_away_is_told(ingest):
    place = VerdictPlace(0, 0, 0, 7, "a" * 12, 0, "real", "camera")
    with pytest.raises(TopicError, match=r"127\.0\.0\.1:1"):
        read_verdict(ingest.model_copy(update={"bootstrap_servers": "127.0.0.1:1"}), place, 0.5)

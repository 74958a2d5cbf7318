"""From verdicts to an alarm that a person sees: a real broker, real media that is read and decoded again."""

import hashlib
import io
import threading
import uuid
from contextlib import contextmanager

import numpy as np
import pytest
from kafka import KafkaProducer
from PIL import Image
from streams import all_of, await_that, first_of
from verdicts import make_item, make_verdict

from detector.records import VERDICTS
from ingest.kafka.topics import Topic, ensure_topics
from ingest.settings import IngestSettings
from memory.clusters.review import list_clusters, members_of
from memory.records import ALARMS, DriftAlarm, ShiftAlarm
from memory.settings import MemorySettings
from memory.shift import drift
from memory.shift.shelving import DRIFT_TYPE
from memory.shift.watch import keep_watch
from memory.store import Store, load_offsets

pytestmark = pytest.mark.system

STEADY, SHIFTED = 120, 20
LOST = STEADY + 2
"""An item whose verdict names other media than the topic has at its place: it must not be taken for it."""


def media():
    files = []
    for number in range(STEADY + SHIFTED):
        rng = np.random.default_rng(number)
        # The shifted ones are smooth, and the others noise.
        side = 160 if number < STEADY else 10
        pixels = Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).resize((160, 160))
        file = io.BytesIO()
        pixels.save(file, "PNG")
        files.append(file.getvalue())
    return files


def test_items_called_real_that_shift_are_told_shown_and_survive_a_restart(broker, tmp_path, monkeypatch):
    # Else it may meet the false alarm that the budget allows.
    monkeypatch.setattr("memory.shift.alarms.secrets.randbits", lambda bits: 7)
    monkeypatch.setattr("memory.shift.alarms.MAX_REFERENCE", 100)
    name = uuid.uuid4().hex
    ingest = IngestSettings(bootstrap_servers=broker, topic_prefix=name, decode_processes=1)
    memory = MemorySettings(
        verdicts_group_id=f"watch-{name}",
        database_url=f"sqlite:///{tmp_path}/memory.sqlite",
        crops_url=str(tmp_path / "crops"),
        index_path=tmp_path / "index",
        min_reference=30,
    )
    topics = (ingest.media_topic, ingest.topic(VERDICTS), ingest.topic(ALARMS))
    ensure_topics(ingest, [Topic(topic, 1_200_000) for topic in topics])
    scores = np.random.default_rng(1).normal(size=STEADY + SHIFTED) + 4 * (
        np.arange(STEADY + SHIFTED) >= STEADY
    )
    producer = KafkaProducer(bootstrap_servers=broker)

    def send(numbers):
        for number in numbers:
            file = files[number]
            at = producer.send(ingest.media_topic, file, partition=0).get(30)
            digest = "0" * 64 if number == LOST else hashlib.sha256(file).hexdigest()
            item = make_item(at.offset, topic=ingest.media_topic, source="door-7", digest=digest)
            said = make_verdict(item, label="real", unknown_score=float(scores[number]))
            producer.send(ingest.topic(VERDICTS), said.model_dump_json().encode()).get(30)

    files = media()
    store = Store(memory.database_url)
    send(range(STEADY))
    with _watching(ingest, memory):
        await_that(lambda: _offset(store) == STEADY)
    assert list_clusters(store) == []  # nothing has shifted
    send(range(STEADY, STEADY + SHIFTED))
    producer.close()
    with _watching(ingest, memory):  # another process goes on with the bets of the first
        told = ShiftAlarm.model_validate_json(first_of(broker, ingest.topic(ALARMS)).value)
        await_that(lambda: not _untold(store))
    events = all_of(broker, ingest.topic(ALARMS))
    drifts = [
        DriftAlarm.model_validate_json(event.value)
        for event in events
        if dict(event.headers)["ce_type"] == DRIFT_TYPE.encode()
    ]
    assert len(events) == 1 + len(drifts)
    assert {d.source for d in drifts} == {"door-7", None}
    assert {(d.statistic, d.direction) for d in drifts} == {("unknown_score", "higher")}
    (shown,) = list_clusters(store)
    assert shown.alarm == told
    assert (told.source, told.cluster) == ("door-7", shown.id)
    assert told.missing == 1
    assert set(shown.members) >= {f"{ingest.media_topic}-0-{n}" for n in (STEADY, STEADY + 1, STEADY + 3)}
    assert f"{ingest.media_topic}-0-{LOST}" not in shown.members
    assert told.cohesion is not None
    assert told.cohesion < 0.05
    assert all(e.shelf == "unknown" and e.crops_digest for e in members_of(store, shown.id))
    store.close()


@contextmanager
def _watching(ingest, memory):
    """A watch on a thread of its own, for the time of a `with`."""
    stop = threading.Event()
    thread = threading.Thread(target=keep_watch, args=(ingest, memory, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def _untold(store):
    with store.read() as connection:
        return drift.to_announce(connection)


def _offset(store):
    with store.read() as connection:
        return sum(load_offsets(connection).values())

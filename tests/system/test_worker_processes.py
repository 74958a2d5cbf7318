"""The memory worker on a real broker: killed at any time, fed with rubbish, it remembers each item once."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from kafka import KafkaConsumer, KafkaProducer
from verdicts import unknown_message

from deploy.layouts import all_topics
from detector.records import UNKNOWNS
from ingest.kafka.topics import Topic, ensure_topics
from ingest.settings import IngestSettings
from memory import rows
from memory.clusters.review import freshness, list_clusters
from memory.crops.crop_store import CropStore
from memory.features import FEATURE_VERSION
from memory.store import Store

pytestmark = pytest.mark.system

COUNT = 60


@contextmanager
def running(environment):
    process = subprocess.Popen(
        [sys.executable, "-m", "memory"], env=os.environ | environment, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def await_rows(store, count):
    deadline = time.monotonic() + 180
    held = -1
    while held < count:
        assert time.monotonic() < deadline, f"{held} of {count} remembered"
        with store.read() as connection:
            held = sum(rows.counts(connection).values())
        time.sleep(0.05)


def await_clustered(store):
    deadline = time.monotonic() + 180
    while (fresh := freshness(store)).newer or fresh.computed_at is None:
        assert time.monotonic() < deadline, fresh
        time.sleep(0.05)


@pytest.mark.bar("B1")
def test_killed_and_fed_with_rubbish_the_worker_remembers_every_item_once(broker, tmp_path):
    name = uuid.uuid4().hex
    ingest = IngestSettings(bootstrap_servers=broker, topic_prefix=name)
    ensure_topics(
        ingest,
        [Topic(ingest.topic(UNKNOWNS), 1_100_000, partitions=2), Topic(ingest.dead_letters_topic, 1_200_000)],
    )
    url = f"sqlite:///{tmp_path}/memory.sqlite"
    environment = {
        "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": broker,
        "FORGEWATCH_INGEST_TOPIC_PREFIX": name,
        "FORGEWATCH_MEMORY_GROUP_ID": f"memory-{name}",
        "FORGEWATCH_MEMORY_DATABASE_URL": url,
        "FORGEWATCH_MEMORY_CROPS_URL": str(tmp_path / "crops"),
        "FORGEWATCH_MEMORY_INDEX_PATH": str(tmp_path / "index"),
        "FORGEWATCH_MEMORY_METRICS_PORT": "0",
        "FORGEWATCH_MEMORY_MAX_BATCH_MESSAGES": "4",
        "FORGEWATCH_MEMORY_CLUSTERS_INTERVAL_S": "0.2",
        "OMP_NUM_THREADS": "1",
    }
    store, crops = Store(url), CropStore(str(tmp_path / "crops"))
    producer = KafkaProducer(bootstrap_servers=broker)

    def send(numbers):
        for number in numbers:
            producer.send(ingest.topic(UNKNOWNS), unknown_message(number), partition=number % 2)
        producer.flush()

    send(range(COUNT // 2))
    for partition, value in ((0, b"rubbish"), (1, b""), (0, None)):
        producer.send(ingest.topic(UNKNOWNS), value, key=b"key", partition=partition)
    with running(environment) as process:
        await_rows(store, 1)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with store.write() as connection:
        connection.exec_driver_sql("UPDATE exemplars SET feature_version = 'of old'")
    send(range(COUNT // 2, COUNT))
    send(range(5))  # the detector may say a thing twice; the id is the same
    with running(environment) as process:
        await_rows(store, COUNT)
        with store.read() as connection:
            everything = rows.select_exemplars(connection)
            assert rows.feature_versions(connection) == {FEATURE_VERSION: COUNT}
            assert sorted(int(e.id.rsplit("-", 1)[1]) for e in everything) == list(range(COUNT))
        for exemplar in everything:
            assert crops.load(str(exemplar.crops_digest)).shape == (2, 32, 32, 3)
        await_clustered(store)
        assert sum(len(cluster.members) for cluster in list_clusters(store)) == COUNT
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    producer.close()
    store.close()

    reader = KafkaConsumer(ingest.dead_letters_topic, bootstrap_servers=broker, auto_offset_reset="earliest")
    letters = {}
    deadline = time.monotonic() + 120
    while len(letters) < 3:
        assert time.monotonic() < deadline, letters
        for batch in reader.poll(500).values():
            for letter in batch:
                headers = dict(letter.headers)
                at = headers["__forgewatch.errors.partition"], headers["__forgewatch.errors.offset"]
                letters[at] = letter.value
                assert letter.key == b"key"
                assert headers["__forgewatch.errors.reason"] == b"no_message"
                assert headers["__forgewatch.errors.stage"] == b"memory"
    reader.close()
    assert sorted(letters.values(), key=str) == sorted([b"rubbish", b"", None], key=str)


Start = Callable[[], tuple["subprocess.Popen[str]", dict[str, Any]]]


@pytest.fixture
def group():
    return f"group-{uuid.uuid4().hex}"


@pytest.fixture
def start(broker, tmp_path, group):
    """Start a detector and wait until it says that it has started; gives it, and what it said."""
    ingest = IngestSettings(bootstrap_servers=broker)
    ensure_topics(ingest, all_topics(ingest, 2))
    environment = {
        "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": broker,
        "FORGEWATCH_DETECTOR_GROUP_ID": group,
        "FORGEWATCH_DETECTOR_METRICS_PORT": "0",
        "FORGEWATCH_DETECTOR_MODEL_STORE_DIR": str(tmp_path),
        "FORGEWATCH_LOG_FORMAT": "json",
    }
    processes = []

    def begin():
        process = subprocess.Popen(
            [sys.executable, "-m", "detector"],
            env=os.environ | environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if (event := json.loads(line))["event"] == "started":
                return process, event
        raise AssertionError("it did not start")

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def test_it_lives_and_is_not_ready_before_a_release_is_there_and_ends_with_0(start):
    process, event = start()
    deadline = time.monotonic() + 120
    while (ready := httpx.get(f"{event['health']}/readyz")).text != "no release is served yet\n":
        assert time.monotonic() < deadline, ready.text
    assert ready.status_code == 503
    assert httpx.get(f"{event['health']}/livez").status_code == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_workers_of_one_host_have_transactional_ids_of_their_own_that_last(start, group):
    (first, one), (_, other) = start(), start()
    ids = [f"{group}-{socket.gethostname()}-{number}" for number in (0, 1)]
    assert [one["transactional_id"], other["transactional_id"]] == ids
    first.kill()
    first.wait()
    assert start()[1]["transactional_id"] == ids[0]

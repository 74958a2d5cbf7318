"""The memory's worker on a real broker, while its PostgreSQL is killed or only reads."""

import json
import os
import time
import uuid
from pathlib import Path

import httpx
import pytest
from kafka import KafkaProducer
from verdicts import unknown_message

from deploy.layouts import all_topics
from detector.records import UNKNOWNS
from ingest.kafka.topics import ensure_topics
from ingest.settings import IngestSettings
from memory import rows
from memory.store import Store

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
A_TIME = 20


def await_that(condition):
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.bar("C2")
@pytest.mark.parametrize(("fault", "said"), [("restarted", ""), ("read_only", "read-only transaction")])
def test_the_memory_s_worker_waits_for_its_database_says_so_and_loses_nothing(
    request, broker, fork, postgresql_url, tmp_path, fault, said, bar
):
    begin = request.getfixturevalue(fault)
    ingest = IngestSettings(bootstrap_servers=broker, topic_prefix=uuid.uuid4().hex)
    ensure_topics(ingest, all_topics(ingest, 2))
    store, producer, sent = Store(postgresql_url), KafkaProducer(bootstrap_servers=broker), 0

    def send():
        nonlocal sent
        for number in range(sent, sent + A_TIME):
            producer.send(ingest.topic(UNKNOWNS), unknown_message(number), partition=number % 2)
        sent += A_TIME

    def held():
        with store.read() as connection:
            return [exemplar.id for exemplar in rows.select_exemplars(connection)]

    environment = os.environ | {
        "FORGEWATCH_LOG_FORMAT": "json",
        "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": broker,
        "FORGEWATCH_INGEST_TOPIC_PREFIX": ingest.topic_prefix,
        "FORGEWATCH_MEMORY_GROUP_ID": f"memory-{ingest.topic_prefix}",
        "FORGEWATCH_MEMORY_DATABASE_URL": postgresql_url,
        "FORGEWATCH_MEMORY_CROPS_URL": str(tmp_path / "crops"),
        "FORGEWATCH_MEMORY_INDEX_PATH": str(tmp_path / "index"),
        "FORGEWATCH_MEMORY_METRICS_PORT": "0",
        "FORGEWATCH_MEMORY_MAX_BATCH_MESSAGES": "4",
        "OMP_NUM_THREADS": "1",
    }
    process = fork(ROOT / "memory" / "__main__.py", environment, cwd=tmp_path)
    lines = map(json.loads, process.stderr)
    started = next(event for event in lines if event["event"] == "started")
    send()
    await_that(lambda: len(held()) == sent)
    worst, times, ready = 0.0, bar.times(1, 5), f"{started['health']}/readyz"
    for _ in range(times):
        send()
        with begin():
            send()
            if said:
                await_that(lambda: said in httpx.get(ready, trust_env=False, timeout=60).text)
        over = time.monotonic()
        await_that(lambda: len(held()) >= sent)
        worst = max(worst, time.monotonic() - over)
    found = held()
    bar.count(times, lost=sent - len({*found}), twice=len(found) - len({*found}), recovery_s=worst)
    assert process.poll() is None
    assert len(found) == len({*found}) == sent
    producer.close()
    store.close()

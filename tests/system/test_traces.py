"""An item's trace, from its producer by way of the detector into the memory's log, and the spans of both."""

import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from types import SimpleNamespace

import pytest
from kafka import KafkaProducer
from streams import first_of
from taken_back import picture_of

from detector.records import UNKNOWNS, VERDICTS, Verdict
from detector.release.artifact import load, seal
from detector.serving.rollout import Route
from detector.serving.session import open_session
from detector.settings import DetectorSettings
from detector.worker import Worker
from ingest.kafka.sink import TransactionalSink
from ingest.kafka.source import Source
from ingest.kafka.topics import Topic, ensure_topics, ingest_topics
from ingest.process.health import Heartbeat
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings
from ingest.tracing import exporting

pytestmark = pytest.mark.system

GOOD, BAD = "4bf92f3577b34da6a3ce929d0e0e4736", "11111111111111111111111111111111"


PRODUCER = "00f067aa0ba902b7"


def test_a_trace_goes_from_the_producer_to_the_verdict_the_memory_and_the_dead_letter(
    broker, untrained_artifact, tmp_path, collector, monkeypatch
):
    shutil.copytree(untrained_artifact.folder, tmp_path / "release")
    manifest = load(tmp_path / "release").manifest
    gate = manifest.gate.model_copy(update={"unknown_threshold": -1e9})
    all_unknown = seal(tmp_path / "release", manifest.model_copy(update={"gate": gate}))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    name = uuid.uuid4().hex
    ingest = IngestSettings(bootstrap_servers=broker, topic_prefix=name)
    settings = DetectorSettings()
    topics = [Topic(kind, 1_200_000) for kind in (ingest.topic(VERDICTS), ingest.topic(UNKNOWNS))]
    ensure_topics(ingest, [*ingest_topics(ingest, partitions=1), *topics])
    event = {"specversion": "1.0", "id": "photo-7", "source": "/camera", "type": "photo"}
    event |= {"traceparent": f"00-{GOOD}-{PRODUCER}-01", "tracestate": "vendor=1"}
    producer = KafkaProducer(bootstrap_servers=broker)
    headers = [(f"ce_{key}", text.encode()) for key, text in event.items()]
    producer.send(ingest.media_topic, picture_of(0), headers=headers)
    own = ("traceparent", f"00-{BAD}-{PRODUCER}-01".encode())
    producer.send(ingest.media_topic, b"no media", headers=[own])
    producer.close()
    session = open_session(all_unknown, threads=1)
    model = SimpleNamespace(predict=lambda artifact, request: session.score(request))
    serving = SimpleNamespace(route=Route(all_unknown), tick=lambda: None)
    stop, heartbeat = threading.Event(), Heartbeat(max_age_s=60)
    with (
        exporting("detector", "workers") as spans,
        Sandbox(ingest) as sandbox,
        TransactionalSink(ingest, f"slot-{name}") as sink,
        Source(ingest, f"group-{name}") as source,
    ):
        worker = Worker(source, sandbox, model, serving, sink, ingest, settings, stop, heartbeat, spans)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            said = first_of(broker, ingest.topic(VERDICTS))
            letter = first_of(broker, ingest.dead_letters_topic)
        finally:
            stop.set()
            thread.join(30)

    verdict, sent = Verdict.model_validate_json(said.value), dict(said.headers)
    assert (verdict.item.traceparent, verdict.item.tracestate) == (event["traceparent"], "vendor=1")
    assert sent["ce_traceparent"] == event["traceparent"].encode()
    assert own in letter.headers
    scored, buried = sorted(collector.spans(), key=lambda span: span.failed)
    assert (scored.service, scored.trace, scored.parent) == ("forgewatch-detector", GOOD, PRODUCER)
    assert sent["traceparent"] == f"00-{GOOD}-{scored.id}-01".encode()
    assert scored.attributes["forgewatch.label"] == "unknown"
    assert scored.attributes["forgewatch.decode_s"] > 0
    assert (buried.trace, buried.parent, buried.failed) == (BAD, PRODUCER, True)

    said_by_memory = memory_remembers(broker, ingest, settings, tmp_path, name)
    assert said_by_memory["item"] == verdict.id
    assert (said_by_memory["trace_id"], said_by_memory["release"]) == (GOOD, all_unknown.version)
    assert (said_by_memory["partition"], said_by_memory["offset"]) == (0, 0)
    (kept,) = (span for span in collector.spans() if span.service == "forgewatch-memory")
    assert (kept.trace, kept.parent) == (GOOD, scored.id)


def memory_remembers(broker, ingest, settings, tmp_path, name):
    """Run a real memory process until it has remembered something; returns what it logged of it."""
    environment = {
        "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": broker,
        "FORGEWATCH_INGEST_TOPIC_PREFIX": ingest.topic_prefix,
        "FORGEWATCH_MEMORY_GROUP_ID": f"memory-{name}",
        "FORGEWATCH_MEMORY_DATABASE_URL": f"sqlite:///{tmp_path}/memory.sqlite",
        "FORGEWATCH_MEMORY_CROPS_URL": str(tmp_path / "crops"),
        "FORGEWATCH_MEMORY_INDEX_PATH": str(tmp_path / "index"),
        "FORGEWATCH_MEMORY_METRICS_PORT": "0",
        "FORGEWATCH_LOG_FORMAT": "json",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "memory"], env=os.environ | environment, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            found = json.loads(line)
            if found["event"] == "unknown remembered":
                process.terminate()
                assert process.wait(30) == 0
                return found
        raise AssertionError("the memory ended")
    finally:
        process.kill()
        process.communicate()

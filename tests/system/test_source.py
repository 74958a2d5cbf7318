"""A source on a real broker: its lag, a narrow topic, a silent broker, a group that is formed anew."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from types import SimpleNamespace

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaTimeoutError
from streams import all_of, await_that, first_of, take
from taken_back import picture_of

from detector.records import UNKNOWNS, VERDICTS, Verdict
from detector.release.artifact import load, seal
from detector.serving.rollout import Route
from detector.serving.session import open_session
from detector.settings import DetectorSettings
from detector.worker import Worker
from ingest import metrics
from ingest.kafka.positions import SameTopic, fresh_topic_id
from ingest.kafka.sink import CommitError, RecordTooLargeError, TransactionalSink
from ingest.kafka.source import Source
from ingest.kafka.topics import Topic, ensure_topics, ingest_topics
from ingest.process.health import Heartbeat
from ingest.records import OutRecord
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings
from ingest.tracing import exporting

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


# An item's trace, from its producer by way of the detector into the memory's log, and the spans of both.
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

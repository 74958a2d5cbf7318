"""The worker's own loop on a real broker and in a real sandbox, with a model that answers in this process."""

import io
import shutil
import threading
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import KafkaConnectionError
from PIL import Image

from detector.records import COMPARISONS, UNKNOWNS, VERDICTS, Verdict, in_share
from detector.release.artifact import load, seal
from detector.release.tensors import CROPS
from detector.serving.rollout import Route
from detector.serving.session import open_session
from detector.settings import DetectorSettings
from detector.worker import Worker
from ingest.kafka import sink as sink_module
from ingest.kafka import source as source_module
from ingest.kafka.sink import TransactionalSink
from ingest.kafka.source import Source
from ingest.kafka.topics import Topic, ensure_topics, ingest_topics
from ingest.process.health import Heartbeat
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system

ITEMS, BATCH = 40, 8


class Model:
    """TorchServe's place; `scored` is released once for each request that it answered."""

    def __init__(self, artifact):
        self._session = open_session(artifact, threads=1)
        self.scored = threading.Semaphore(0)

    def predict(self, artifact, request):
        output = self._session.score(request)
        self.scored.release()
        return output


@contextmanager
def working(broker, artifact):
    name = uuid.uuid4().hex
    ingest = IngestSettings(bootstrap_servers=broker, topic_prefix=name)
    settings = DetectorSettings(max_batch_items=BATCH)
    kinds = (VERDICTS, UNKNOWNS, COMPARISONS)
    topics = [Topic(ingest.topic(kind), 1_200_000) for kind in kinds]
    ensure_topics(ingest, [*ingest_topics(ingest, partitions=2), *topics])
    serving = SimpleNamespace(route=Route(artifact), tick=lambda: None)
    model = Model(artifact)
    with (
        Sandbox(ingest) as sandbox,
        TransactionalSink(ingest, f"slot-{name}") as sink,
        Source(ingest, f"group-{name}") as source,
    ):
        stop, heartbeat = threading.Event(), Heartbeat(max_age_s=60)
        yield Worker(source, sandbox, model, serving, sink, ingest, settings, stop, heartbeat), model


@contextmanager
def running(worker):
    """The worker's loop in a thread, until the block is left."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield
    worker.stop.set()
    thread.join(30)


def send_pictures(settings):
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    sent = []
    for seed in range(ITEMS):
        file = io.BytesIO()
        pixels = np.random.default_rng(seed).integers(0, 256, (72, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file, "PNG")
        sent.append(producer.send(settings.media_topic, file.getvalue(), partition=seed % 2))
    positions = [future.get(10) for future in sent]
    producer.close()
    return {f"{at.topic}-{at.partition}-{at.offset}" for at in positions}


def answers(worker, count, quiet_ms, most_s=20):
    """The committed verdicts' ids: until there are `count` and none comes in quiet_ms, or most_s are over."""
    return Counter(verdict.id for verdict in verdicts(worker, count, quiet_ms, most_s))


def verdicts(worker, count, quiet_ms, most_s=20):
    consumer = KafkaConsumer(
        worker.ingest.topic(VERDICTS),
        bootstrap_servers=worker.ingest.bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    found = []
    for _ in range(1000 * most_s // quiet_ms):
        polled = consumer.poll(timeout_ms=quiet_ms)
        found += [
            Verdict.model_validate_json(record.value) for records in polled.values() for record in records
        ]
        if not polled and len(found) >= count:
            break
    consumer.close()
    return found


def hold_back(monkeypatch, model, until):
    """Let the first request be answered only then; gives the crops of each request, as it comes."""
    real, asked = model.predict, []

    def predict(artifact, request):
        asked.append(len(request[CROPS]))
        if len(asked) == 1:
            until()
        return real(artifact, request)

    monkeypatch.setattr(model, "predict", predict)
    return asked


@pytest.mark.parametrize("polls", [True, False], ids=["polls", "control: waits for its batch alone"])
def test_a_batch_that_outlasts_the_poll_interval_is_done_once(broker, untrained_artifact, monkeypatch, polls):
    options = source_module.kafka_options
    monkeypatch.setattr(
        source_module, "kafka_options", lambda given: {**options(given), "max_poll_interval_ms": 10_000}
    )
    poll_interval_s = 10.0
    if not polls:
        monkeypatch.setattr(Worker, "_stay_a_member", lambda _: None)
    with working(broker, untrained_artifact) as (worker, model):

        def outlasted():
            began, over = time.monotonic(), 2 * poll_interval_s if polls else 60.0
            while worker.source.is_member() and time.monotonic() < began + over:
                worker.stop.wait(0.2)

        asked = hold_back(monkeypatch, model, outlasted)
        sent = send_pictures(worker.ingest)
        thread = threading.Thread(target=worker.run)
        thread.start()
        found = answers(worker, ITEMS, quiet_ms=500, most_s=90)
        worker.stop.set()
        thread.join(30)
    assert found == dict.fromkeys(sent, 1)
    assert (sum(asked) == ITEMS * asked[0]) == polls


def test_a_batch_is_judged_while_another_member_comes_and_goes_and_nothing_is_lost_or_twice(
    broker, untrained_artifact, monkeypatch
):
    with working(broker, untrained_artifact) as (worker, model):
        group = worker.source.group_metadata().group_id

        def shared():
            with Source(worker.ingest, group) as other:
                until = time.monotonic() + 60
                while not other.assignment() and time.monotonic() < until:
                    other.poll(1, 0.1)
                shared_with.append(other.assignment())

        shared_with = []
        asked = hold_back(monkeypatch, model, shared)
        sent = send_pictures(worker.ingest)
        thread = threading.Thread(target=worker.run)
        thread.start()
        found = answers(worker, ITEMS, quiet_ms=500, most_s=90)
        worker.stop.set()
        thread.join(30)
    assert len(shared_with[0]) == 1
    assert found == dict.fromkeys(sent, 1)
    assert len(asked) > 1  # the batch of the member's round before it was refused, and done again


def break_a_commit(monkeypatch, model):
    """Break the second transaction once its records are written and the batch after it is scored."""
    real, sizes = sink_module._transaction, []

    def transaction(producer, records, *rest):
        sizes.append(len(records))
        if len(sizes) != 2:
            return real(producer, records, *rest)
        producer.begin_transaction()
        for record in records:
            producer.send(record.topic, value=record.value, key=record.key)
        producer.flush()
        # The first two batches were scored before this commit began; the third is the one ahead.
        assert all(model.scored.acquire(timeout=20) for _ in range(3))
        raise OSError("the line broke before the commit")

    monkeypatch.setattr(sink_module, "_transaction", transaction)
    return sizes


@pytest.mark.bar("B1")
@pytest.mark.parametrize("refusals", [0, 3])
def test_a_commit_that_fails_while_the_next_batch_is_scored_loses_and_doubles_nothing(
    broker, untrained_artifact, monkeypatch, refusals
):
    real, refused = Source.rewind, []

    def rewind(source):
        if len(refused) < refusals:
            refused.append(source)
            raise KafkaConnectionError("ECONNREFUSED")
        real(source)

    monkeypatch.setattr(Source, "rewind", rewind)
    with working(broker, untrained_artifact) as (worker, model):
        sizes = break_a_commit(monkeypatch, model)
        sent = send_pictures(worker.ingest)
        with running(worker):
            found = answers(worker, ITEMS, quiet_ms=500)
    assert (len(sizes) > ITEMS / BATCH, len(refused)) == (True, refusals)
    assert found == dict.fromkeys(sent, 1)


@pytest.mark.bar("B1")
def test_without_the_rewind_the_broken_batch_would_be_missed(broker, untrained_artifact, monkeypatch):
    monkeypatch.setattr(Worker, "_rewind", lambda worker: worker.sink.recover())
    with working(broker, untrained_artifact) as (worker, model):
        break_a_commit(monkeypatch, model)
        sent = send_pictures(worker.ingest)
        with running(worker):
            found = answers(worker, BATCH, quiet_ms=3000)
    assert 0 < found.total() < len(sent)


@pytest.mark.bar("B2")
def test_a_line_that_breaks_amid_finding_a_coordinator_is_survived(broker, untrained_artifact, monkeypatch):
    real, breaks = ConsumerCoordinator.ensure_coordinator_ready, iter([False, True, True, False, True])

    def ready(*arguments, **named):
        if next(breaks, False):
            raise KafkaConnectionError("ECONNREFUSED")
        return real(*arguments, **named)

    monkeypatch.setattr(ConsumerCoordinator, "ensure_coordinator_ready", ready)
    with working(broker, untrained_artifact) as (worker, _):
        sent = send_pictures(worker.ingest)
        with running(worker):
            assert answers(worker, ITEMS, quiet_ms=500) == dict.fromkeys(sent, 1)
    assert next(breaks, None) is None


def test_a_worker_whose_dead_letters_are_not_taken_is_not_ready_until_they_are(broker, untrained_artifact):
    with working(broker, untrained_artifact) as (worker, _):
        letters, admin = worker.ingest.dead_letters_topic, KafkaAdminClient(bootstrap_servers=broker)

        def widen(limit_bytes):
            configs = {"max.message.bytes": str(limit_bytes)}
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, letters, configs)])

        def await_that(told):
            deadline = time.monotonic() + 120
            while not told(worker.heartbeat.hindrance() or "ready"):
                assert time.monotonic() < deadline
                worker.stop.wait(0.05)

        widen(100)
        producer = KafkaProducer(bootstrap_servers=broker)
        producer.send(worker.ingest.media_topic, b"no media").get(10)
        with running(worker):
            await_that(lambda told: "not committed" in told)
            for _ in range(200):  # also while it tries again
                assert worker.heartbeat.hindrance() is not None
                worker.stop.wait(0.01)
            widen(1_200_000)
            await_that(lambda told: told == "ready")
        producer.close()
        admin.close()


def test_a_canary_scores_its_share_in_the_same_transactions_once(broker, untrained_artifact, tmp_path):
    shutil.copytree(untrained_artifact.folder, tmp_path / "canary")
    manifest = load(tmp_path / "canary").manifest
    canary = seal(tmp_path / "canary", manifest.model_copy(update={"parent": untrained_artifact.digest}))
    with working(broker, untrained_artifact) as (worker, _):
        serving = worker.serving
        serving.route = Route(untrained_artifact, canary, 0.4, 0.4)
        sent = send_pictures(worker.ingest)
        with running(worker):
            found = verdicts(worker, ITEMS, quiet_ms=500)
    assert Counter(verdict.id for verdict in found) == dict.fromkeys(sent, 1)
    by_canary = {verdict.id for verdict in found if verdict.release == canary.digest}
    assert by_canary == {each for each in sent if in_share(each, 0.4)}
    assert {verdict.release for verdict in found} == {canary.digest, untrained_artifact.digest}


@pytest.mark.bar("B1")
def test_an_error_of_the_process_ends_it_and_the_next_loses_nothing(broker, untrained_artifact, monkeypatch):
    with working(broker, untrained_artifact) as (worker, _):
        real, times = sink_module._transaction, []

        def transaction(*arguments):
            times.append(arguments)
            if len(times) == 2:
                raise ZeroDivisionError("nobody foresaw this")
            return real(*arguments)

        monkeypatch.setattr(sink_module, "_transaction", transaction)
        sent = send_pictures(worker.ingest)
        with pytest.raises(ZeroDivisionError):
            worker.run()
        worker.source.close()
        with (
            Source(worker.ingest, worker.source._consumer.config["group_id"]) as source,
            TransactionalSink(worker.ingest, f"again-{uuid.uuid4().hex}") as sink,
        ):
            again = replace(worker, source=source, sink=sink)
            with running(again):
                found = answers(again, ITEMS, quiet_ms=500)
    assert found == dict.fromkeys(sent, 1)

"""`python -m deploy` as a process: approvals reach the topic, a killed server loses nothing."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing, contextmanager
from functools import partial

import httpx
import pytest
import streams
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families
from streams import produce

from deploy.cli.main import main
from deploy.local.processes import free_port
from deploy.releases.ledger import Ledger, Move
from deploy.releases.publish import Publisher, TopicContent, read_topic, write_rollout
from deploy.releases.standing import replay
from detector.records import RELEASES, Rollout
from detector.release.artifact import MANIFEST
from ingest.kafka.access import kafka_options
from ingest.kafka.topics import Topic, ensure_topics
from ingest.settings import IngestSettings
from updater.records import Candidate

pytestmark = pytest.mark.system


@pytest.fixture
def environment(broker, tmp_path, monkeypatch):
    """A stack's settings with nothing but a broker and the server, in this process's environment too."""
    port, metrics_port = free_port(), free_port()
    values = {
        "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": broker,
        "FORGEWATCH_INGEST_TOPIC_PREFIX": uuid.uuid4().hex,
        "FORGEWATCH_DEPLOY_URL": f"http://127.0.0.1:{port}",
        "FORGEWATCH_DEPLOY_PORT": str(port),
        "FORGEWATCH_DEPLOY_METRICS_PORT": str(metrics_port),
        "FORGEWATCH_DEPLOY_TOKEN": "s3cret",
        "FORGEWATCH_DEPLOY_UPDATER_TOKEN": "its own",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    ingest = IngestSettings()
    ensure_topics(ingest, [Topic(ingest.topic(RELEASES), 1_048_576, compacted=True)])
    return values


@contextmanager
def serving(environment):
    process = subprocess.Popen([sys.executable, "-P", "-m", "deploy"], env=os.environ)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(retries=8)) as client:
            assert client.get(f"{environment['FORGEWATCH_DEPLOY_URL']}/healthz").is_success
        yield process
    finally:
        process.kill()
        process.wait()


def propose(environment, artifact, candidate):
    headers = {"Authorization": "Bearer its own"}
    with httpx.Client(base_url=environment["FORGEWATCH_DEPLOY_URL"], headers=headers) as client:
        for name in (*artifact.manifest.files, MANIFEST):
            content = (artifact.folder / name).read_bytes()
            client.put(f"/artifacts/{artifact.digest}/{name}", content=content).raise_for_status()
        client.post("/releases", json=candidate.model_dump(mode="json")).raise_for_status()


def published(environment):
    topic = IngestSettings().topic(RELEASES)
    for _ in range(100):
        rollout = read_topic(kafka_options(IngestSettings()), topic, 10).newest
        if rollout is not None:
            return rollout.stable
    return None


def test_an_approval_by_the_command_line_reaches_the_topic_and_the_server_ends_on_sigterm(
    environment, untrained_artifact, candidate_of
):
    with serving(environment) as process:
        propose(environment, untrained_artifact, candidate_of(untrained_artifact))
        assert main(["approve", untrained_artifact.digest[:12]]) == 0
        assert published(environment) == untrained_artifact.digest
        port = environment["FORGEWATCH_DEPLOY_METRICS_PORT"]
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        states = {s.labels["state"]: s.value for s in families["forgewatch_deploy_releases"].samples}
        assert (states["live"], states["proposed"]) == (1, 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) in (0, -signal.SIGTERM)


def test_a_row_that_a_killed_server_could_not_publish_is_published_by_the_next(
    environment, untrained_artifact, candidate_of, tmp_path
):
    with serving(environment) as process:
        propose(environment, untrained_artifact, candidate_of(untrained_artifact))
        process.kill()
        process.wait()
    digest, evaluation = untrained_artifact.digest, "e" * 64
    ledger = Ledger(f"sqlite:///{tmp_path}/.forgewatch/deploy/ledger.sqlite")
    ledger.append(
        lambda history: [
            Move("ada", "approve", digest, evaluation),
            Move("ada", "promote", digest, evaluation),
        ]
    )
    ledger.close()
    with serving(environment):
        assert published(environment) == digest


# The releases topic on a real broker says what the ledger says, whatever came between.
A, B, C = "a" * 64, "b" * 64, "c" * 64
OF_AN_EARLIER_VERSION = json.dumps({"slot": "stable", "stable": A, "previous": None, "sequence": 99}).encode()


@pytest.fixture
def ledger(tmp_path):
    opened = Ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    yield opened
    opened.close()


def go_live(ledger, digest):
    evaluation = "e" * 64
    candidate = Candidate(
        digest=digest, evaluation_digest=evaluation, parent=None, update=1, classes=("real",), gates=()
    )
    ledger.append(
        lambda history: [
            Move("ada", "propose", digest, evaluation, candidate=candidate),
            Move("ada", "approve", digest, evaluation),
            Move("ada", "promote", digest, evaluation),
        ]
    )


def expected(ledger, stable, previous, sequence):
    epoch = replay(ledger.events()).epoch
    return Rollout(ledger=ledger.id, epoch=epoch, sequence=sequence, stable=stable, previous=previous)


def named(settings, topic):
    """The rollout that a worker reads last."""
    return read_topic(kafka_options(settings), topic, 10).newest


# Within less than a publisher's interval, so that what is seen is not the next look at the topic.
await_that = partial(streams.await_that, timeout_s=20)


def publisher(ledger, settings, topic, interval_s=60):
    return Publisher(ledger, kafka_options(settings), topic, interval_s=interval_s, timeout_s=10)


def test_what_a_crash_kept_from_the_topic_is_published_at_the_next_start(ledger, settings, make_topic):
    topic = make_topic(compacted=True)
    go_live(ledger, A)  # and here the server died
    assert named(settings, topic) is None
    with publisher(ledger, settings, topic):
        await_that(lambda: named(settings, topic) is not None)
    assert named(settings, topic) == expected(ledger, A, None, 3)


def test_a_move_is_published_when_the_publisher_is_woken(ledger, settings, make_topic):
    topic = make_topic(compacted=True)
    with publisher(ledger, settings, topic) as running:
        await_that(lambda: running.problem is None)
        go_live(ledger, A)
        go_live(ledger, B)
        running.wake()
        wanted = expected(ledger, B, A, 6)
        await_that(lambda: named(settings, topic) == wanted)


@pytest.mark.parametrize(
    "value", [b"no rollout", None, b'{"stable": "x", "sequence": 99}', OF_AN_EARLIER_VERSION]
)
def test_a_foreign_record_on_the_topic_is_soon_overwritten(ledger, settings, make_topic, value):
    topic = make_topic(compacted=True)
    go_live(ledger, A)
    with publisher(ledger, settings, topic, interval_s=0.2):
        wanted = expected(ledger, A, None, 3)
        await_that(lambda: named(settings, topic) == wanted)
        produce(settings.bootstrap_servers, topic, value, key=b"stable")
        # A worker passes it by, but compaction would keep it in place of what deploy wrote.
        await_that(lambda: read_topic(kafka_options(settings), topic, 10) == TopicContent(wanted, wanted))


def test_an_unchanged_ledger_writes_the_topic_once(ledger, settings, make_topic):
    topic = make_topic(compacted=True)
    go_live(ledger, A)
    for _ in range(3):
        publisher(ledger, settings, topic).heal()
    consumer = KafkaConsumer(bootstrap_servers=settings.bootstrap_servers)
    part = TopicPartition(topic, 0)
    assert consumer.end_offsets([part])[part] == 1
    consumer.close()


def test_a_missing_topic_is_a_problem_that_passes(ledger, settings, make_topic):
    name = f"t-{uuid.uuid4().hex}"
    go_live(ledger, A)
    with pytest.raises(match="no topic"):
        read_topic(kafka_options(settings), name, 10)
    with publisher(ledger, settings, name) as running:
        await_that(lambda: "no topic" in (running.problem or ""))
        make_topic(compacted=True, name=name)
        await_that(lambda: running.problem is None)
    assert named(settings, name) is not None


def test_a_written_rollout_is_read_back(settings, make_topic):
    topic = make_topic(compacted=True)
    rollout = Rollout(ledger="0" * 32, epoch=0, sequence=1, stable=A)
    write_rollout(kafka_options(settings), topic, rollout, 10)
    assert named(settings, topic) == rollout


def raises(ledger):
    return [event.move.reason or "" for event in ledger.events() if event.move.action == "raise epoch"]


@pytest.mark.parametrize("key", [b"stable", b"another key"])
def test_a_forged_record_is_outranked_and_put_on_record(ledger, settings, make_topic, key):
    topic = make_topic(compacted=True)
    go_live(ledger, A)
    with publisher(ledger, settings, topic, interval_s=0.2) as running:
        await_that(lambda: named(settings, topic) == expected(ledger, A, None, 3))
        forged = Rollout(ledger=ledger.id, epoch=4, sequence=2**40, stable=B)
        produce(settings.bootstrap_servers, topic, forged.model_dump_json().encode(), key=key)
        await_that(lambda: bool(raises(ledger)))
        await_that(lambda: named(settings, topic) == expected(ledger, A, None, 3))
        await_that(lambda: running.problem is None)
    (reason,) = raises(ledger)
    assert "named release bbbbbbbbbbbb by this ledger, epoch 4" in reason
    assert replay(ledger.events()).epoch == 5


def test_a_ledger_restored_from_an_older_copy_outranks_the_later(ledger, settings, make_topic, tmp_path):
    topic = make_topic(compacted=True)
    go_live(ledger, A)
    with (
        closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as now,
        closing(sqlite3.connect(tmp_path / "backup.sqlite")) as backup,
    ):
        now.backup(backup)
    go_live(ledger, B)
    publisher(ledger, settings, topic).heal()
    restored = Ledger(f"sqlite:///{tmp_path}/backup.sqlite")
    assert publisher(restored, settings, topic).heal() is None
    assert named(settings, topic) == expected(restored, A, None, 3)
    (reason,) = raises(restored)
    assert "restored from an older copy" in reason
    restored.close()


def test_a_ledger_begun_anew_says_what_the_topic_names_and_wins(ledger, settings, make_topic, tmp_path):
    topic = make_topic(compacted=True)
    for digest in (A, B):
        go_live(ledger, digest)
    publisher(ledger, settings, topic).heal()
    empty = Ledger(f"sqlite:///{tmp_path}/anew.sqlite")
    problem = publisher(empty, settings, topic).heal()
    assert problem is not None
    assert "names release bbbbbbbbbbbb by another ledger" in problem
    assert "nothing is live by this ledger" in problem
    assert empty.events() == ()
    go_live(empty, C)
    assert publisher(empty, settings, topic).heal() is None
    assert named(settings, topic) == expected(empty, C, None, 3)
    assert "begun anew" in raises(empty)[0]
    empty.close()


def test_an_empty_topic_and_an_empty_ledger_are_no_problem(ledger, settings, make_topic):
    topic = make_topic(compacted=True)
    assert publisher(ledger, settings, topic).heal() is None
    assert read_topic(kafka_options(settings), topic, 10) == TopicContent()


def test_two_servers_over_one_topic_do_not_fight_unseen_or_at_speed(ledger, settings, make_topic, tmp_path):
    topic = make_topic(compacted=True)
    other = Ledger(f"sqlite:///{tmp_path}/other.sqlite")
    go_live(ledger, A)
    go_live(other, B)
    with (
        publisher(ledger, settings, topic, interval_s=0.1) as one,
        publisher(other, settings, topic, interval_s=0.1) as two,
    ):
        await_that(lambda: min(len(raises(ledger)), len(raises(other))) >= 3)
        await_that(lambda: "something else writes to the releases topic" in f"{one.problem} {two.problem}")
    assert len(raises(ledger)) + len(raises(other)) < 20
    assert "another deploy server writes there" in raises(ledger)[-1]
    other.close()


def test_what_an_aborted_transaction_wrote_is_read_by_nobody(ledger, settings, make_topic):
    topic = make_topic(compacted=True)
    go_live(ledger, A)
    publisher(ledger, settings, topic).heal()
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers, transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    forged = Rollout(ledger=ledger.id, epoch=9, sequence=9, stable=B)
    producer.send(topic, key=b"stable", value=forged.model_dump_json().encode()).get(10)
    producer.abort_transaction()
    producer.close()
    assert publisher(ledger, settings, topic).heal() is None
    assert raises(ledger) == []

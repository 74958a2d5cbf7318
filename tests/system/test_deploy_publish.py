"""The releases topic on a real broker says what the ledger says, whatever came between."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from deploy.releases.ledger import Ledger, Move
from deploy.releases.publish import Publisher, PublishError, read_rollout, write_rollout
from detector.records import Rollout
from ingest.settings import IngestSettings, kafka_options
from updater.records import Candidate

pytestmark = pytest.mark.system

A, B = "a" * 64, "b" * 64
OF_AN_EARLIER_VERSION = json.dumps({"slot": "stable", "stable": A, "previous": None, "sequence": 99}).encode()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    yield opened
    opened.close()


def go_live(ledger: Ledger, digest: str) -> None:
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


def expected(ledger: Ledger, stable: str, previous: str | None, sequence: int) -> Rollout:
    return Rollout(ledger=ledger.id, epoch=ledger.epoch, sequence=sequence, stable=stable, previous=previous)


def publisher(ledger: Ledger, settings: IngestSettings, topic: str, interval_s: float = 60) -> Publisher:
    return Publisher(ledger, kafka_options(settings), topic, interval_s=interval_s, timeout_s=10)


def until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_a_crash_kept_from_the_topic_is_published_at_the_next_start(
    ledger: Ledger, settings: IngestSettings, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(compacted=True)
    go_live(ledger, A)  # and here the server died
    assert read_rollout(kafka_options(settings), topic, 10) is None
    with publisher(ledger, settings, topic):
        until(lambda: read_rollout(kafka_options(settings), topic, 10) is not None)
    assert read_rollout(kafka_options(settings), topic, 10) == expected(ledger, A, None, 3)


def test_a_move_is_published_when_the_publisher_is_woken(
    ledger: Ledger, settings: IngestSettings, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(compacted=True)
    with publisher(ledger, settings, topic) as running:
        until(lambda: running.problem is None)
        go_live(ledger, A)
        go_live(ledger, B)
        running.wake()
        wanted = expected(ledger, B, A, 6)
        until(lambda: read_rollout(kafka_options(settings), topic, 10) == wanted)


@pytest.mark.parametrize(
    "value", [b"no rollout", None, b'{"stable": "x", "sequence": 99}', OF_AN_EARLIER_VERSION]
)
def test_a_foreign_record_on_the_topic_is_overwritten_within_the_interval(
    ledger: Ledger, settings: IngestSettings, make_topic: Callable[..., str], value: bytes | None
) -> None:
    topic = make_topic(compacted=True)
    go_live(ledger, A)
    with publisher(ledger, settings, topic, interval_s=0.2):
        wanted = expected(ledger, A, None, 3)
        until(lambda: read_rollout(kafka_options(settings), topic, 10) == wanted)
        producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
        producer.send(topic, key=b"stable", value=value).get(10)
        producer.close()
        until(lambda: read_rollout(kafka_options(settings), topic, 10) == wanted)


def test_an_unchanged_ledger_writes_the_topic_once(
    ledger: Ledger, settings: IngestSettings, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(compacted=True)
    go_live(ledger, A)
    for _ in range(3):
        publisher(ledger, settings, topic).heal()
    consumer = KafkaConsumer(bootstrap_servers=settings.bootstrap_servers)
    part = TopicPartition(topic, 0)
    assert consumer.end_offsets([part])[part] == 1
    consumer.close()


def test_a_missing_topic_is_a_problem_that_passes(
    ledger: Ledger, settings: IngestSettings, make_topic: Callable[..., str]
) -> None:
    name = f"t-{uuid.uuid4().hex}"
    go_live(ledger, A)
    with pytest.raises(PublishError, match="no topic"):
        read_rollout(kafka_options(settings), name, 10)
    with publisher(ledger, settings, name) as running:
        until(lambda: "no topic" in (running.problem or ""))
        make_topic(compacted=True, name=name)
        until(lambda: running.problem is None)
    assert read_rollout(kafka_options(settings), name, 10) is not None


def test_a_written_rollout_is_read_back(settings: IngestSettings, make_topic: Callable[..., str]) -> None:
    topic = make_topic(compacted=True)
    rollout = Rollout(ledger="0" * 32, epoch=0, sequence=1, stable=A)
    write_rollout(kafka_options(settings), topic, rollout, 10)
    assert read_rollout(kafka_options(settings), topic, 10) == rollout

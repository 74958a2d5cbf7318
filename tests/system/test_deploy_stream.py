"""Deploy's side of a real broker: publishing, lag, sending media, reading verdicts."""

import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from deploy.lag import LagError, group_lag
from deploy.ledger import Ledger, Move
from deploy.publish import Publisher, PublishError, read_rollout, write_rollout
from deploy.stream import StreamError, follow_verdicts, media_producer, newest_verdicts, send_file
from detector.records import Rollout, Timings, Verdict
from ingest.envelope import open_envelope
from ingest.records import MediaItem
from ingest.settings import IngestSettings, kafka_options
from ingest.topics import Topic, ensure_topics
from updater.records import Candidate

pytestmark = pytest.mark.system

A, B = "a" * 64, "b" * 64


@pytest.fixture
def settings(broker: str, tmp_path: Path) -> IngestSettings:
    root = tmp_path / "claims"
    root.mkdir()
    return IngestSettings(
        bootstrap_servers=broker, media_topic=f"media-{uuid.uuid4().hex}", claim_check_root=root
    )


@pytest.fixture
def make_topic(settings: IngestSettings) -> Callable[..., str]:
    def make(partitions: int = 1, *, compacted: bool = False, name: str | None = None) -> str:
        topic = Topic(name or f"t-{uuid.uuid4().hex}", 1_200_000, partitions, compacted=compacted)
        ensure_topics(settings, [topic])
        return topic.name

    return make


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
    assert read_rollout(kafka_options(settings), topic, 10) == Rollout(stable=A, previous=None, sequence=3)


def test_a_move_is_published_when_the_publisher_is_woken(
    ledger: Ledger, settings: IngestSettings, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(compacted=True)
    with publisher(ledger, settings, topic) as running:
        until(lambda: running.problem is None)
        go_live(ledger, A)
        go_live(ledger, B)
        running.wake()
        wanted = Rollout(stable=B, previous=A, sequence=6)
        until(lambda: read_rollout(kafka_options(settings), topic, 10) == wanted)


@pytest.mark.parametrize("value", [b"no rollout", None, b'{"stable": "x", "sequence": 99}'])
def test_a_foreign_record_on_the_topic_is_overwritten_within_the_interval(
    ledger: Ledger, settings: IngestSettings, make_topic: Callable[..., str], value: bytes | None
) -> None:
    topic = make_topic(compacted=True)
    go_live(ledger, A)
    with publisher(ledger, settings, topic, interval_s=0.2):
        wanted = Rollout(stable=A, previous=None, sequence=3)
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


def test_lag_counts_what_a_group_has_not_committed_by_partition(
    settings: IngestSettings, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(2)
    produce(settings, topic, 10, partition=0)
    group = f"g-{uuid.uuid4().hex}"
    assert [(p.committed, p.lag) for p in lag(settings, group, topic)] == [(None, 10), (None, 0)]
    consumer = KafkaConsumer(
        bootstrap_servers=settings.bootstrap_servers, group_id=group, enable_auto_commit=False
    )
    part = TopicPartition(topic, 0)
    consumer.assign([part])
    consumer.seek(part, 4)
    consumer.commit()
    consumer.close()
    assert [(p.committed, p.end, p.lag) for p in lag(settings, group, topic)] == [(4, 10, 6), (None, 0, 0)]


def test_the_end_of_a_transaction_is_no_lag(settings: IngestSettings, make_topic: Callable[..., str]) -> None:
    topic = make_topic()
    produce(settings, topic, 3, transactional=True)
    # A group that keeps its own offsets stands after the last record, before the transaction's end.
    (behind,) = lag(settings, "unused", topic, {0: 3})
    assert (behind.end, behind.lag) == (4, 0)
    (behind,) = lag(settings, "unused", topic, {0: 2})
    assert behind.lag == 2


def test_lag_of_a_topic_that_is_not_there_is_told(settings: IngestSettings) -> None:
    with pytest.raises(LagError, match="no topic"):
        lag(settings, "g", "t-nowhere")


@pytest.mark.parametrize("raw", [False, True])
def test_a_file_that_is_sent_is_what_ingest_opens(
    settings: IngestSettings, make_topic: Callable[..., str], tmp_path: Path, raw: bool
) -> None:
    make_topic(name=settings.media_topic)
    path = tmp_path / "ein Bild ä.jpg"
    path.write_bytes(b"\xff\xd8 some bytes")
    with media_producer(settings) as producer:
        position = send_file(producer, settings, path, raw=raw)
    item, media = opened(settings)
    assert position == f"{settings.media_topic}-0-0"
    assert media == path.read_bytes()
    assert item.declared_type == (None if raw else "image/jpeg")
    assert (item.media_id is None) == raw


def test_a_large_file_goes_by_claim_check_below_the_root_and_not_at_all_elsewhere(
    settings: IngestSettings, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    make_topic(name=settings.media_topic)
    large = b"\0" * (settings.max_media_bytes + 1)
    assert settings.claim_check_root is not None
    inside, outside = settings.claim_check_root / "a b.mp4", tmp_path / "b.mp4"
    for path in (inside, outside):
        path.write_bytes(large)
    with media_producer(settings) as producer:
        send_file(producer, settings, inside, raw=False)
        with pytest.raises(StreamError, match="FORGEWATCH_INGEST_CLAIM_CHECK_ROOT"):
            send_file(producer, settings, outside, raw=False)
        with pytest.raises(StreamError, match="larger than"):
            send_file(producer, settings, inside, raw=True)
    item, media = opened(settings)
    assert item.digest == hashlib.sha256(large).hexdigest()
    assert len(media) == len(large)


def test_the_largest_record_that_the_topic_takes_is_sent(
    settings: IngestSettings, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    make_topic(name=settings.media_topic)
    path = tmp_path / "x.jpg"
    path.write_bytes(b"\0" * settings.max_media_bytes)
    with media_producer(settings) as producer:
        send_file(producer, settings, path, raw=False)
    assert len(opened(settings)[1]) == settings.max_media_bytes


def test_the_newest_verdicts_are_read_across_partitions_and_aborted_ones_are_not(
    settings: IngestSettings, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(3)
    for number in range(9):
        produce(settings, topic, 1, partition=number % 3, transactional=True, values=[verdict(number)])
    produce(settings, topic, 1, transactional=True, values=[verdict(99)], abort=True)
    produce(settings, topic, 1, values=[b"no verdict"])
    assert [found.item.offset for found in newest_verdicts(settings, topic, 4)] == [5, 6, 7, 8]
    assert len(newest_verdicts(settings, topic, 100)) == 9


def test_following_shows_what_is_committed_from_now_on(
    settings: IngestSettings, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    produce(settings, topic, 1, values=[verdict(0)])
    following = follow_verdicts(settings, topic)
    later = threading.Timer(
        1.0, produce, (settings, topic, 1), {"values": [verdict(1)], "transactional": True}
    )
    later.start()
    assert next(following).item.offset == 1
    following.close()
    later.join()


def test_no_verdicts_topic_is_one_clear_error(settings: IngestSettings) -> None:
    with pytest.raises(StreamError, match="no topic"):
        newest_verdicts(settings, "t-nowhere", 1)


def test_a_written_rollout_is_read_back(settings: IngestSettings, make_topic: Callable[..., str]) -> None:
    topic = make_topic(compacted=True)
    rollout = Rollout(stable=A, previous=None, sequence=1)
    write_rollout(kafka_options(settings), topic, rollout, 10)
    assert read_rollout(kafka_options(settings), topic, 10) == rollout


def lag(settings: IngestSettings, group: str, topic: str, known: dict[int, int] | None = None) -> Any:
    return group_lag(kafka_options(settings), group, topic, 10, known)


def produce(
    settings: IngestSettings,
    topic: str,
    count: int,
    *,
    partition: int = 0,
    transactional: bool = False,
    abort: bool = False,
    values: list[bytes] | None = None,
) -> None:
    options = {"transactional_id": f"x-{uuid.uuid4().hex}"} if transactional else {}
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers, retry_backoff_ms=2, **options)
    if transactional:
        producer.init_transactions()
        producer.begin_transaction()
    for number in range(count):
        producer.send(topic, value=values[number] if values else b"x", partition=partition)
    producer.flush()
    if transactional:
        producer.abort_transaction() if abort else producer.commit_transaction()
    producer.close()


def opened(settings: IngestSettings) -> tuple[MediaItem, bytes]:
    consumer = KafkaConsumer(
        settings.media_topic,
        bootstrap_servers=settings.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
        max_partition_fetch_bytes=4 * settings.max_record_bytes,
    )
    record = next(iter(consumer))
    consumer.close()
    return open_envelope(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.headers,
        record.value,
        settings,
    )


def verdict(number: int) -> bytes:
    item = MediaItem(
        topic="m", partition=0, offset=number, timestamp_ms=0, source="s", digest="d" * 64, size_bytes=1
    )
    made = Verdict(
        id=f"m-0-{number}",
        item=item,
        kind="image",
        format="JPEG",
        width=1,
        height=1,
        label="real",
        family=None,
        family_probability=None,
        fake_probability=0.1,
        energy=-3,
        novelty=1,
        unknown_score=0,
        unknown_threshold=1,
        fake_threshold=0.5,
        neighbours=(),
        regions=(),
        release=A,
        timings=Timings(decode_s=0, model_s=0),
    )
    return made.model_dump_json().encode()

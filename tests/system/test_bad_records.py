"""On a real broker: what strangers write and what a disk damages holds up no reader of any topic."""

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cramjam
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from deploy.client.kafka import newest_verdicts
from deploy.releases.publish import read_topic
from detector.records import RELEASES, Rollout
from detector.serving.rollout_source import ReleaseFollower
from ingest.envelope import EnvelopeError, open_envelope
from ingest.kafka.access import kafka_options
from ingest.kafka.source import Source
from ingest.settings import IngestSettings
from memory.intake import UnfitItemError
from memory.settings import MemorySettings
from memory.source import StoredSource, unknowns
from memory.store import Store
from memory.worker import arrival_of

pytestmark = pytest.mark.system

LARGE = 10_000_000
MARK = b"this batch is damaged on the disk"
ROLLOUT = Rollout(ledger="a" * 32, epoch=1, sequence=7, stable="b" * 64)
DEEP = b"[" * 100_000
SURROGATE = b'{"specversion":"1.0","id":"\\ud800","source":"/c","type":"m","data_base64":"bWVkaWE="}'


class NoText(str):
    """A header name that is no UTF-8, as librdkafka sends it and brokers take it."""

    def encode(self, *arguments: str) -> bytes:
        return b"\xff\xfe"


CODECS: dict[str, Callable[[bytes], Any]] = {
    "gzip": cramjam.gzip.compress,
    "snappy": cramjam.snappy.compress_raw,
    "lz4": lambda data: in_lz4_blocks(data),
    "zstd": cramjam.zstd.compress,
}


def in_lz4_blocks(data: bytes) -> Any:
    """Blocks that do not depend on one another: the broker takes no others."""
    compressor = cramjam.lz4.Compressor(block_linked=False)
    compressor.compress(data)
    return compressor.finish()


LAST = 8 + 2 * len(CODECS)


@pytest.fixture
def topic(settings: IngestSettings, broker_folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic as Kafka makes it. Its last record is a rollout; the others are rubbish, damaged or packed.

    Of each codec it has a sound record, and one that unpacks to more than any reader holds.
    """
    name = f"t-{uuid.uuid4().hex}"
    admin = KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    admin.create_topics([NewTopic(name, 1, 1)])
    admin.close()
    producer = KafkaProducer(**kafka_options(settings), max_request_size=1_100_000)
    odd: list[tuple[str, bytes]] = [(NoText("xx"), b"1"), ("ce_", b"\xff")]
    for value in (None, b"", b"\xff\x00", DEEP, SURROGATE):
        producer.send(name, value, key=b"\xff", headers=odd).get(10)
    producer.send(name, MARK).get(10)
    damage(broker_folder / "data" / f"{name}-0", MARK)
    for value in (b"0", b'{"a":NaN}'):
        producer.send(name, value, key=b"stable").get(10)
    for codec, pack in CODECS.items():
        monkeypatch.setattr(f"kafka.codec.has_{codec}", lambda: True)
        monkeypatch.setattr(
            f"kafka.record.default_records.{codec}_encode", lambda data, p=pack: bytes(p(data))
        )
        monkeypatch.setitem(KafkaProducer._COMPRESSORS, codec, (lambda: True, 1 + [*CODECS].index(codec)))
        packing = KafkaProducer(
            **kafka_options(settings), compression_type=codec, max_request_size=LARGE + 1000
        )
        packing.send(name, codec.encode()).get(10)
        packing.send(name, bytes(LARGE)).get(10)
        packing.close()
    producer.send(name, ROLLOUT.model_dump_json().encode(), key=b"stable").get(10)
    producer.close()
    return name


def damage(folder: Path, mark: bytes) -> None:
    """Change one byte of a written record where it lies; the broker sends what the file says."""
    (segment,) = folder.glob("*.log")
    at = segment.read_bytes().index(mark)
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"T")


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """What the work gives; a reader that hangs for ever fails the test in a thread of its own."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert done, f"no end within {seconds} s"
    return done[0]


def test_the_detector_reads_and_answers_each(
    settings: IngestSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IngestSettings, "topic", lambda *_: topic)

    def read() -> list[int]:
        offsets: list[int] = []
        with Source(settings, f"group-{topic}") as source:
            while not offsets or offsets[-1] < LAST:
                for record in source.poll(3, 0.2):
                    offsets.append(record.offset)
                    try:
                        sound.append(open_envelope(record, settings)[1])
                    except EnvelopeError as error:
                        reasons.append(error.reason)
        return offsets

    sound: list[bytes] = []
    reasons: list[str] = []
    assert within(60, read) == [*range(5), *range(6, LAST + 1)]
    assert set(map(str.encode, CODECS)) < set(sound)
    assert reasons.count("unreadable") == len(CODECS)


def test_the_memory_reads_and_refuses_each(settings: IngestSettings, topic: str, sqlite_url: str) -> None:
    def read() -> list[int]:
        offsets: list[int] = []
        memory = MemorySettings(group_id=f"group-{topic}", max_batch_messages=3)
        reading = replace(unknowns(settings, memory), topic=topic)
        with contextlib.closing(Store(sqlite_url)) as store, StoredSource(settings, reading, store) as source:
            while not offsets or offsets[-1] < LAST:
                for record in source.poll():
                    offsets.append(record.offset)
                    with pytest.raises(UnfitItemError):
                        arrival_of(record)
        return offsets

    assert within(60, read) == [*range(5), *range(6, LAST + 1)]


def test_the_publisher_and_the_worker_find_the_rollout_behind_it(
    settings: IngestSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IngestSettings, "topic", lambda *_: topic)
    assert within(60, lambda: read_topic(kafka_options(settings), topic, 30).newest) == ROLLOUT

    def follow() -> Rollout | None:
        with ReleaseFollower(settings) as follower:
            while follower.poll(0.2) is None:
                pass
            return follower.newest

    assert within(60, follow) == ROLLOUT


def test_the_command_line_shows_no_verdict_where_there_is_none(settings: IngestSettings, topic: str) -> None:
    assert within(60, lambda: newest_verdicts(settings, topic, 20)) == []


def rollout(sequence: int, epoch: int = 0) -> Rollout:
    return Rollout(ledger="0" * 32, epoch=epoch, sequence=sequence, stable="a" * 64)


def test_the_newest_rollout_is_the_last_one_written_whatever_lies_between(
    settings: IngestSettings, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(compacted=True, name=settings.topic(RELEASES))
    earlier = {"slot": "stable", "stable": "a" * 64, "previous": None, "sequence": 99}
    values = [
        rollout(10**9).model_dump_json().encode(),
        rollout(3, epoch=1).model_dump_json().encode(),
        json.dumps(earlier).encode(),
        json.dumps({**rollout(4).model_dump(), "stable": "/etc"}).encode(),
        None,
        b"\xff",
        b"[" * 100_000,
    ]
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    with ReleaseFollower(settings) as follower:
        assert follower.poll(timeout_s=0.1) is None
        for value in values:
            producer.send(topic, key=b"stable", value=value, headers=[("\u00e4", b"\xff")]).get(10)
        last = rollout(2, epoch=2)
        producer.send(topic, key=b"stable", value=last.model_dump_json().encode()).get(10)
        deadline = time.monotonic() + 120
        seen = []
        while follower.newest != last:
            assert time.monotonic() < deadline
            if (newest := follower.poll(timeout_s=0.1)) not in seen:
                seen.append(newest)
    producer.close()
    assert seen[-1] == last

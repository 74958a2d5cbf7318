"""Records that nobody can score come among pictures: each is one dead letter, and they hold up nothing."""

import contextlib
import hashlib
import json
import threading
import time
import uuid
from collections import Counter
from dataclasses import replace

import cramjam
import pytest
from answers import PARTITIONS, PICTURES
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from streams import all_of, await_that

from deploy.client.kafka import newest_verdicts
from deploy.dead_letters import MOST_REPLAYS, RecordPlace, read_page, replay
from deploy.releases.publish import read_topic
from detector.records import RELEASES, Rollout
from detector.serving.rollout_source import ReleaseFollower
from ingest.dead_letters import REPLAY_OF, dead_letter
from ingest.envelope import EnvelopeError, open_envelope
from ingest.kafka.access import kafka_options
from ingest.kafka.source import Source
from ingest.kafka.topics import TopicError
from ingest.records import InRecord, MediaError
from ingest.settings import IngestSettings
from memory.intake import UnfitItemError
from memory.settings import MemorySettings
from memory.source import StoredSource, unknowns
from memory.store import Store
from memory.worker import arrival_of

pytestmark = pytest.mark.system

POISON = (
    b"",
    None,
    b"\x00" * 100,
    b"%PDF-1.7\n" + b"a" * 500,
    PICTURES[0][:60],
    b"\xff\xd8\xff" + b"a" * 500,
    b"GIF89a" + b"\xff" * 50,
    b"{" * 1000,
)


def poison(settings, count):
    """Send what cannot be scored; return where each lies."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    sent = [
        producer.send(
            settings.media_topic, POISON[n % len(POISON)], b"poison %d" % n, partition=n % PARTITIONS
        )
        for n in range(count)
    ]
    found = {f"{at.topic}-{at.partition}-{at.offset}" for at in (future.get(60) for future in sent)}
    producer.close()
    return found


def dead_letters(settings):
    """How often each item is a dead letter, by the item's id."""

    def item(headers):
        facts = (headers[f"__forgewatch.errors.{name}"] for name in ("topic", "partition", "offset"))
        return "-".join(fact.decode() for fact in facts)

    letters = all_of(settings.bootstrap_servers, settings.dead_letters_topic)
    return Counter(item(dict(letter.headers)) for letter in letters)


def replay_all(settings):
    letters = all_of(settings.bootstrap_servers, settings.dead_letters_topic)
    places = [RecordPlace(letter.topic, letter.partition, letter.offset) for letter in letters]
    return list(replay(settings, places, 30))


@pytest.mark.bar("B6")
def test_each_record_that_cannot_be_scored_is_one_dead_letter_in_three_tries(settings, answers, slots, bar):
    count = bar.times(24, 1000)
    sent, good = Counter(dict.fromkeys(poison(settings, count // 2), 1)), 3 * count
    answers.send(good)
    sent |= Counter(dict.fromkeys(poison(settings, count - count // 2), 1))
    await_that(answers.reach, 1800)
    await_that(lambda: dead_letters(settings).total() >= count, 300)
    found = dead_letters(settings)
    bar.count(count, lost=len(sent - found) + answers.lost, twice=len(found - sent) + answers.twice)
    assert found == sent
    assert (answers.lost, answers.twice, answers.in_order) == (0, 0, True)

    for turn in range(1, MOST_REPLAYS + 1):
        assert sum(outcome.why_not is None for outcome in replay_all(settings)) == count
        await_that(lambda turn=turn: dead_letters(settings).total() >= count * (turn + 1), 600)
    assert {outcome.why_not is None for outcome in replay_all(settings)} == {False}
    media = all_of(settings.bootstrap_servers, settings.media_topic)
    poisoned = [record for record in media if record.key.startswith(b"poison")]
    first = Counter(record.value for record in poisoned if REPLAY_OF not in dict(record.headers))
    again = Counter(record.value for record in poisoned if REPLAY_OF in dict(record.headers))
    assert again == {value: MOST_REPLAYS * times for value, times in first.items()}


# On a real broker: what strangers write and what a disk damages holds up no reader of any topic.
LARGE = 10_000_000
MARK = b"this batch is damaged on the disk"
ROLLOUT = Rollout(ledger="a" * 32, epoch=1, sequence=7, stable="b" * 64)
DEEP = b"[" * 100_000
SURROGATE = b'{"specversion":"1.0","id":"\\ud800","source":"/c","type":"m","data_base64":"bWVkaWE="}'


class NoText(str):
    """A header name that is no UTF-8, as librdkafka sends it and brokers take it."""

    def encode(self, *arguments):
        return b"\xff\xfe"


CODECS = {
    "gzip": cramjam.gzip.compress,
    "snappy": cramjam.snappy.compress_raw,
    "lz4": lambda data: in_lz4_blocks(data),
    "zstd": cramjam.zstd.compress,
}


def in_lz4_blocks(data):
    """Blocks that do not depend on one another: the broker takes no others."""
    compressor = cramjam.lz4.Compressor(block_linked=False)
    compressor.compress(data)
    return compressor.finish()


LAST = 8 + 2 * len(CODECS)


@pytest.fixture
def topic(settings, broker_folder, monkeypatch):
    """A topic as Kafka makes it. Its last record is a rollout; the others are rubbish, damaged or packed.

    Of each codec it has a sound record, and one that unpacks to more than any reader holds.
    """
    name = f"t-{uuid.uuid4().hex}"
    admin = KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    admin.create_topics([NewTopic(name, 1, 1)])
    admin.close()
    producer = KafkaProducer(**kafka_options(settings), max_request_size=1_100_000)
    odd = [(NoText("xx"), b"1"), ("ce_", b"\xff")]
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


def damage(folder, mark):
    """Change one byte of a written record where it lies; the broker sends what the file says."""
    (segment,) = folder.glob("*.log")
    at = segment.read_bytes().index(mark)
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"T")


def within(seconds, work):
    """What the work gives; a reader that hangs for ever fails the test in a thread of its own."""
    done = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert done, f"no end within {seconds} s"
    return done[0]


def test_the_detector_reads_and_answers_each(settings, topic, monkeypatch):
    monkeypatch.setattr(IngestSettings, "topic", lambda *_: topic)

    def read():
        offsets = []
        with Source(settings, f"group-{topic}") as source:
            while not offsets or offsets[-1] < LAST:
                for record in source.poll(3, 0.2):
                    offsets.append(record.offset)
                    try:
                        sound.append(open_envelope(record, settings)[1])
                    except EnvelopeError as error:
                        reasons.append(error.reason)
        return offsets

    sound = []
    reasons = []
    assert within(60, read) == [*range(5), *range(6, LAST + 1)]
    assert set(map(str.encode, CODECS)) < set(sound)
    assert reasons.count("unreadable") == len(CODECS)


def test_the_memory_reads_and_refuses_each(settings, topic, sqlite_url):
    def read():
        offsets = []
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


def test_the_publisher_and_the_worker_find_the_rollout_behind_it(settings, topic, monkeypatch):
    monkeypatch.setattr(IngestSettings, "topic", lambda *_: topic)
    assert within(60, lambda: read_topic(kafka_options(settings), topic, 30).newest) == ROLLOUT

    def follow():
        with ReleaseFollower(settings) as follower:
            while follower.poll(0.2) is None:
                pass
            return follower.newest

    assert within(60, follow) == ROLLOUT


def test_the_command_line_shows_no_verdict_where_there_is_none(settings, topic):
    assert within(60, lambda: newest_verdicts(settings, topic, 20)) == []


def rollout(sequence, epoch=0):
    return Rollout(ledger="0" * 32, epoch=epoch, sequence=sequence, stable="a" * 64)


def test_the_newest_rollout_is_the_last_one_written_whatever_lies_between(settings, make_topic):
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


# Dead letters on a real broker are shown newest first, each once, over as many pages as they take.
def test_each_is_shown_once_newest_first_with_its_reason_and_without_its_bytes(settings, make_topic):
    with pytest.raises(TopicError, match="no topic"):
        read_page(settings, {}, 10, 10)
    make_topic(partitions=2, name=settings.dead_letters_topic)
    assert read_page(settings, {}, 10, 10).letters == ()
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for number in range(25):
        headers = (("ce_id", b"e\xff"), ("ce_source", b"camera"))
        record = InRecord("media", 3, number, 0, b"k", b"bytes %d" % number, headers)
        letter = dead_letter(record, "decode", MediaError("damaged", "no picture"), settings)
        sent = producer.send(
            letter.topic, letter.value, letter.key, list(letter.headers), number % 3 == 0, 1000 + number
        )
        sent.get(30)
    producer.close()

    shown = []
    before = {}
    while before is not None:
        page = read_page(settings, before, 10, 10)
        shown += page.letters
        before = None if page.older is None else dict(page.older)
    assert [letter.at_ms for letter in shown] == [1000 + number for number in reversed(range(25))]
    newest = shown[0]
    assert (newest.facts["reason"], newest.facts["stage"], newest.facts["offset"]) == (
        "damaged",
        "decode",
        "24",
    )
    assert (newest.event, newest.source, newest.size) == ("e�", "camera", 8)
    assert newest.digest == hashlib.sha256(b"bytes 24").hexdigest()

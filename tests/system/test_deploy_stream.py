"""Deploy's side of a real broker: lag, sending media, reading verdicts."""

import hashlib
import threading
import time
import uuid

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import CoordinatorLoadInProgressError
from verdicts import make_item, make_verdict

from deploy.client.kafka import (
    StreamError,
    answers,
    follow_verdicts,
    media_producer,
    newest_verdicts,
    send_file,
)
from deploy.group_lag import group_lag
from deploy.layouts import all_topics, examine_topics
from ingest.dead_letters import dead_letter
from ingest.envelope import EnvelopeError, open_envelope
from ingest.kafka.access import kafka_options
from ingest.kafka.source import in_records
from ingest.kafka.topics import TopicError, ensure_topics, ingest_topics
from ingest.records import InRecord

pytestmark = pytest.mark.system


def test_lag_counts_what_a_group_has_not_committed_by_partition(settings, make_topic):
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


def test_the_end_of_a_transaction_is_no_lag(settings, make_topic):
    topic = make_topic()
    produce(settings, topic, 3, transactional=True)
    # A group that keeps its own offsets stands after the last record, before the transaction's end.
    (behind,) = lag(settings, "unused", topic, {0: 3})
    deadline = time.monotonic() + 120
    while behind.end != 4 and time.monotonic() < deadline:  # written after the commit was answered
        (behind,) = lag(settings, "unused", topic, {0: 3})
    assert (behind.end, behind.lag) == (4, 0)
    (behind,) = lag(settings, "unused", topic, {0: 2})
    assert behind.lag == 2


def test_what_lies_in_an_open_transaction_waits_too(settings, make_topic):
    topic = make_topic()
    produce(settings, topic, 2)
    producer = KafkaProducer(**kafka_options(settings), transactional_id=uuid.uuid4().hex)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"x").get(10)
    for place, waits in ((2, 1), (0, 3)):
        (behind,) = lag(settings, "unused", topic, {0: place})
        assert (behind.end, behind.lag, behind.held_back) == (3, waits, 1)
    producer.abort_transaction()
    producer.close()
    deadline = time.monotonic() + 120
    while behind.held_back and time.monotonic() < deadline:
        (behind,) = lag(settings, "unused", topic, {0: 2})
    assert (behind.lag, behind.held_back) == (0, 0)


@pytest.mark.parametrize("stamp", [0, 1_790_000_000, 4_000_000_000_000])
def test_a_producer_s_wrong_clock_makes_no_age(settings, make_topic, monkeypatch, stamp):
    topic = make_topic()
    monkeypatch.setattr("time.time", lambda: 4_000_000_000.0 if stamp > 10**10 else 1_790_000_000.0)
    producer = KafkaProducer(**kafka_options(settings))
    producer.send(topic, b"x", timestamp_ms=min(stamp, 1_790_000_000_000)).get(10)
    producer.close()
    (behind,) = lag(settings, f"g-{uuid.uuid4().hex}", topic)
    assert (behind.lag, behind.seconds) == (1, None)


SET_WRONG = {
    "media": ("cleanup.policy", "compact", "takes none without a key"),
    "verdicts": ("cleanup.policy", "compact,delete", "forgets records"),
    "releases": ("cleanup.policy", "delete", "deletes records that it must keep"),
    "unknowns": ("max.message.bytes", "1000", "a partition will stand still"),
    "alarms": ("retention.ms", "60000", "deleted unread"),
    "comparisons": ("retention.bytes", "1000", "deleted unread"),
}


def test_each_setting_of_a_topic_that_matters_is_told_with_what_to_do(settings):
    ensure_topics(
        settings, [each for each in all_topics(settings, 3) if each.name != settings.topic("replays")]
    )
    expected, deadline = ([settings.topic("replays")], [], ""), time.monotonic() + 60
    while examine_topics(settings, 10_000) != expected:  # a broker lists a new topic a moment later
        assert time.monotonic() < deadline
    admin = KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    admin.create_topics(
        [NewTopic(settings.topic("replays"), 2, 1, topic_configs={"cleanup.policy": "compact"})]
    )
    changes = {name: {setting: value} for name, (setting, value, _) in SET_WRONG.items()}
    changes["media"]["compression.type"] = "producer"
    of_topic = ConfigResourceType.TOPIC
    admin.alter_configs([ConfigResource(of_topic, settings.topic(name), to) for name, to in changes.items()])
    admin.close()
    found = examine_topics(settings, 10_000)
    lines = {wrong.split()[0].rpartition(".")[2]: f"{wrong}: {advice}" for wrong, advice in found.problems}
    assert lines.keys() == SET_WRONG.keys() | {"replays"}
    assert "2 partitions; one is read" in lines["replays"]
    for name, (setting, _, told) in SET_WRONG.items():
        assert setting in lines[name]
        assert told in lines[name]
    assert "compression.type producer" in found.note


def test_lag_of_a_topic_that_is_not_there_is_told(settings):
    with pytest.raises(TopicError, match="no topic"):
        lag(settings, "g", "t-nowhere")


def test_lag_awaits_a_coordinator_that_is_loading_within_its_time(settings, make_topic, monkeypatch):
    topic, group = make_topic(), f"g-{uuid.uuid4().hex}"
    answer, refusals = ConsumerCoordinator._handle_offset_fetch_response, [True] * 2

    def loading(self, response):
        if refusals:
            raise CoordinatorLoadInProgressError(refusals.pop())
        return answer(self, response)

    monkeypatch.setattr(ConsumerCoordinator, "_handle_offset_fetch_response", loading)
    assert [(p.committed, p.lag) for p in lag(settings, group, topic)] == [(None, 0)]
    assert not refusals
    refusals += [True] * 1000
    began = time.monotonic()
    with pytest.raises(TopicError, match="cannot read"):
        group_lag(kafka_options(settings), group, topic, 2)
    assert time.monotonic() - began < 20
    assert refusals


@pytest.mark.parametrize("raw", [False, True])
def test_a_file_that_is_sent_is_what_ingest_opens(settings, make_topic, tmp_path, raw):
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


@pytest.mark.parametrize("beyond", [-2000, -100, 0, 1, 12 << 20])
@pytest.mark.parametrize("folder", ["claims", "elsewhere", "no claim checks"])
def test_a_file_of_any_size_is_sent_in_its_record_or_by_claim_check(settings, tmp_path, beyond, folder):
    ensure_topics(settings, ingest_topics(settings, 1))
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / folder.replace("no claim checks", "elsewhere") / "a b.mp4"
    path.write_bytes(b"\0" * (settings.max_media_bytes + beyond))
    if folder == "no claim checks":
        settings = settings.model_copy(update={"claim_check_dir": None})
    with media_producer(settings) as producer:
        small = settings.model_copy(update={"max_fetched_bytes": path.stat().st_size - 1})
        with pytest.raises(StreamError, match="make it smaller"):
            send_file(producer, small, path, raw=False)
        if beyond > -100:
            with pytest.raises(StreamError, match="leave --raw out"):
                send_file(producer, settings, path, raw=True)
        if beyond > -2000 and folder == "no claim checks":
            with pytest.raises(StreamError, match="FORGEWATCH_INGEST_CLAIM_CHECK_DIR"):
                send_file(producer, settings, path, raw=False)
            return
        for _ in range(2):
            send_file(producer, settings, path, raw=False)
    item, media = opened(settings)
    assert item.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert len(media) == path.stat().st_size
    modes = [each.stat().st_mode & 0o777 for each in tmp_path.glob("claims/sent/*")]
    assert modes == [0o644] * (beyond > -2000 and folder == "elsewhere")


def test_the_newest_verdicts_are_read_across_partitions_and_aborted_ones_are_not(settings, make_topic):
    topic = make_topic(3)
    for number in range(9):
        produce(settings, topic, 1, partition=number % 3, transactional=True, values=[verdict(number)])
    produce(settings, topic, 1, transactional=True, values=[verdict(99)], abort=True)
    produce(settings, topic, 1, values=[b"no verdict"])
    assert [found.item.offset for found in newest_verdicts(settings, topic, 4)] == [5, 6, 7, 8]
    assert len(newest_verdicts(settings, topic, 100)) == 9


def test_following_shows_what_is_committed_from_now_on(settings, make_topic):
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


def test_what_was_sent_gets_its_own_answers_a_verdict_or_a_dead_letter(settings, make_topic):
    topics = [make_topic(2, name=settings.topic(name)) for name in ("verdicts", "dead-letters")]
    produce(settings, topics[0], 1, values=[verdict(7)])  # from before
    with answers(settings) as follow:
        record = InRecord("media", 0, 3, 0, b"k", b"v", ())
        letter = dead_letter(record, "decode", EnvelopeError("no_media", "nothing"), settings)
        with media_producer(settings) as producer:
            producer.send(letter.topic, letter.value, headers=[*letter.headers]).get(10)
        produce(settings, topics[0], 3, transactional=True, values=[verdict(n) for n in (1, 2, 7)])
        found = dict(follow(["media-0-7", "media-0-3", "media-0-1"]))
    kinds = {id_[-1]: type(answer).__name__ for id_, answer in found.items()}
    assert kinds == {"7": "Verdict", "1": "Verdict", "3": "DeadLetter"}


def test_no_verdicts_topic_is_one_clear_error(settings):
    with pytest.raises(StreamError, match="no topic"):
        newest_verdicts(settings, "t-nowhere", 1)


def lag(settings, group, topic, known=None):
    return group_lag(kafka_options(settings), group, topic, 10, known)


def produce(settings, topic, count, *, partition=0, transactional=False, abort=False, values=None):
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


def opened(settings):
    consumer = KafkaConsumer(
        settings.media_topic,
        bootstrap_servers=settings.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
        max_partition_fetch_bytes=4 * settings.max_record_bytes,
    )
    first = next(iter(consumer))
    consumer.close()
    (record,) = in_records({TopicPartition(first.topic, first.partition): [first]}, {})
    return open_envelope(record, settings)


def verdict(number):
    return make_verdict(make_item(number), label="real").model_dump_json().encode()

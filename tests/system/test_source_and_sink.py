"""Source and sink on a real broker: what is committed is all or nothing, once, and never stands still."""

import threading
import time
import uuid
from contextlib import contextmanager

import pytest
from kafka import KafkaProducer
from streams import all_of, take
from structlog.testing import capture_logs

from ingest.dead_letters import dead_letter
from ingest.envelope import EnvelopeError
from ingest.kafka import sink as sink_module
from ingest.kafka.sink import CommitError, RecordTooLargeError, TransactionalSink
from ingest.kafka.source import Source
from ingest.kafka.topics import Topic, ensure_topics, ingest_topics
from ingest.records import InRecord, OutRecord
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system


@pytest.fixture
def settings(broker):
    name = uuid.uuid4().hex
    settings = IngestSettings(bootstrap_servers=broker, topic_prefix=name)
    created = ensure_topics(
        settings, (*ingest_topics(settings, partitions=2), Topic(out_topic(settings), 1_048_576))
    )
    assert len(created) == 3
    return settings


def out_topic(settings):
    return settings.topic("out")


@contextmanager
def producing(settings, **options):
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers, **options)
    yield producer
    producer.flush()
    producer.close()


def send(settings, count):
    with producing(settings) as producer:
        for number in range(count):
            producer.send(settings.media_topic, value=b"%d" % number, key=b"%d" % number)


def echo(settings, records):
    return [OutRecord(out_topic(settings), record.key, record.value) for record in records]


def test_a_commit_carries_records_and_offsets_together(settings):
    send(settings, 20)
    with TransactionalSink(settings, "slot-a") as sink:
        with Source(settings, "group") as source:
            records = take(source, 20)
            sink.commit(echo(settings, records), source.offsets_after(records), source.group_metadata())
        with Source(settings, "group") as source:
            assert source.poll(10, timeout_s=3) == []
    assert {record.value for record in all_of(settings.bootstrap_servers, out_topic(settings))} == {
        b"%d" % n for n in range(20)
    }


def test_a_failed_transaction_leaves_nothing_and_its_records_come_again(settings, monkeypatch):
    send(settings, 6)
    with TransactionalSink(settings, "slot-b") as sink, Source(settings, "group") as source:
        records = take(source, 6)

        def fail_late(*arguments):
            producer = arguments[0]
            producer.begin_transaction()
            for record in arguments[1]:
                producer.send(record.topic, value=record.value, key=record.key)
            producer.flush()
            raise OSError("the line broke before the commit")

        with monkeypatch.context() as patch:
            patch.setattr(sink_module, "_transaction", fail_late)
            with pytest.raises(CommitError):
                sink.commit(echo(settings, records), source.offsets_after(records), source.group_metadata())
        sink.recover()
        source.rewind()
        again = take(source, 6)
        sink.commit(echo(settings, again), source.offsets_after(again), source.group_metadata())
    assert sorted(record.offset for record in again) == sorted(record.offset for record in records)
    assert len(all_of(settings.bootstrap_servers, out_topic(settings))) == 6
    assert len(all_of(settings.bootstrap_servers, out_topic(settings), "read_uncommitted")) == 12


@pytest.mark.bar("B4")
def test_a_commit_whose_answer_was_lost_is_not_done_twice(settings, monkeypatch):
    send(settings, 5)
    real = sink_module._transaction

    def commit_but_say_nothing(*arguments):
        real(*arguments)
        raise TimeoutError("no answer")

    with TransactionalSink(settings, "slot-c") as sink, Source(settings, "group") as source:
        records = take(source, 5)
        with monkeypatch.context() as patch:
            patch.setattr(sink_module, "_transaction", commit_but_say_nothing)
            with pytest.raises(CommitError):
                sink.commit(echo(settings, records), source.offsets_after(records), source.group_metadata())
        sink.recover()
        source.rewind()
        assert source.poll(10, timeout_s=2) == []
    assert len(all_of(settings.bootstrap_servers, out_topic(settings))) == 5


@pytest.mark.bar("B4")
def test_a_transaction_that_hangs_is_given_up_and_its_producer_fenced(settings, monkeypatch):
    send(settings, 3)
    monkeypatch.setattr(sink_module, "COMMIT_TIMEOUT_S", 3.0)
    release, late = threading.Event(), []
    real = sink_module._transaction

    def hang(*arguments):
        release.wait(30)
        try:
            return real(*arguments)
        except Exception as error:
            late.append(error)
            raise
        finally:
            ended.set()

    ended = threading.Event()
    with TransactionalSink(settings, "slot-d") as sink, Source(settings, "group") as source:
        records = take(source, 3)
        with monkeypatch.context() as patch:
            patch.setattr(sink_module, "_transaction", hang)
            with pytest.raises(CommitError, match="TimeoutError"):
                sink.commit(echo(settings, records), source.offsets_after(records), source.group_metadata())
        sink.recover()
        release.set()
        assert ended.wait(30)
        source.rewind()
        again = take(source, 3)
        sink.commit(echo(settings, again), source.offsets_after(again), source.group_metadata())
    assert late
    assert len(all_of(settings.bootstrap_servers, out_topic(settings))) == 3


def test_a_second_sink_of_the_same_slot_fences_the_first(settings):
    records = [OutRecord(out_topic(settings), b"k", b"v")]
    with TransactionalSink(settings, "slot-e") as old, TransactionalSink(settings, "slot-e") as new:
        new.commit(records, {}, None)
        with pytest.raises(CommitError):
            old.commit(records, {}, None)


def test_every_kind_of_record_has_a_dead_letter_that_can_be_written(settings):
    headers = [("ce_id", b"\xff\xfe"), ("empty", b"")]
    with producing(settings, max_request_size=2 * settings.max_media_bytes) as producer:
        producer.send(
            settings.media_topic, value=b"v" * (settings.max_media_bytes - 600), key=b"big", headers=headers
        )
        producer.send(settings.media_topic, value=None, key=b"null", headers=headers)
        producer.send(settings.media_topic, value=b"", key=None, headers=headers)
    with TransactionalSink(settings, "slot-f") as sink, Source(settings, "group") as source:
        records = take(source, 3)
        nothing = InRecord(settings.media_topic, 0, 7, 0, None, None, (("h", None),))
        error = EnvelopeError("null_value", "ä" * 2000)
        letters = [dead_letter(record, "envelope", error, settings) for record in [*records, nothing]]
        sink.commit(letters, source.offsets_after(records), source.group_metadata())
    written = all_of(settings.bootstrap_servers, settings.dead_letters_topic)
    assert {(record.key, record.value) for record in written} == {
        (record.key, record.value) for record in [*records, nothing]
    }
    big = next(record for record in written if record.key == b"big")
    assert big.headers[:2] == headers
    assert len(dict(big.headers)["__forgewatch.errors.message"]) <= 1024


def test_a_record_beyond_the_limit_is_refused_before_anything_is_sent(settings):
    with TransactionalSink(settings, "slot-g") as sink:
        small = OutRecord(out_topic(settings), b"k", b"v")
        large = OutRecord(out_topic(settings), b"k", b"v" * (settings.max_record_bytes + 1))
        with pytest.raises(RecordTooLargeError) as refused:
            sink.commit([small, large], {}, None)
        assert refused.value.record is large
        sink.commit([small], {}, None)
    assert len(all_of(settings.bootstrap_servers, out_topic(settings))) == 1


def test_a_paused_source_stays_a_member_and_reads_on_after(settings):
    send(settings, 4)
    with Source(settings, "group") as source:
        take(source, 2)
        source.pause()
        assert source.poll(10, timeout_s=1) == []
        assert len(source.assignment()) == 2
        source.resume()
        take(source, 2)
        assert source.lag() == 0


def test_after_a_rebalance_every_partition_is_read_from_the_groups_offsets(settings):
    send(settings, 20)
    with Source(settings, "group") as first:
        taken = take(first, 20)
        with Source(settings, "group") as second:
            # Nothing was committed, and the first may not do so any more.
            again = set()
            deadline = time.monotonic() + 120
            # While the group is dealt anew, one of them may have nothing for a moment.
            while len(again) < 20 or not len(first.assignment()) == len(second.assignment()) == 1:
                assert time.monotonic() < deadline, (len(again), first.assignment(), second.assignment())
                read = first.poll(20, timeout_s=0.1) + second.poll(20, timeout_s=0.1)
                again |= {(record.partition, record.offset) for record in read}
    assert again == {(record.partition, record.offset) for record in taken}


@pytest.mark.bar("B3")
def test_offsets_of_a_member_that_was_put_out_are_not_committed(settings):
    send(settings, 2)
    with Source(settings, "group") as source, TransactionalSink(settings, "slot-out") as sink:
        records = take(source, 2)
        source._consumer._coordinator.reset_generation()  # as a refused heartbeat does
        with pytest.raises(CommitError, match="put this member out"):
            sink.commit([], source.offsets_after(records), source.group_metadata())
        sink.recover()
        source.rewind()
        assert take(source, 2) == records


def test_a_header_name_that_is_no_text_does_not_hold_up_its_partition(settings):
    class Odd(str):
        def encode(self, *arguments):
            return b"\xff\xfe"

    with producing(settings) as producer:
        producer.send(settings.media_topic, value=b"before", partition=0).get(10)
        producer.send(settings.media_topic, value=b"odd", partition=0, headers=[(Odd("xx"), b"1")]).get(10)
        producer.send(settings.media_topic, value=b"after", partition=0).get(10)
        producer.send(settings.media_topic, value=b"other", partition=1).get(10)
    with Source(settings, "group") as source:
        records = take(source, 4)
    assert {record.value for record in records} == {b"before", b"odd", b"after", b"other"}
    assert next(record for record in records if record.value == b"odd").headers == (("??", b"1"),)


def test_two_producers_of_one_transactional_id_do_not_put_each_other_out_in_silence(settings):
    name = f"slot-{uuid.uuid4().hex}"
    record = OutRecord(out_topic(settings), None, b"x")
    with TransactionalSink(settings, name) as first:
        first.commit([record], {}, None)
        with TransactionalSink(settings, f"{name}-other"), capture_logs() as logged:
            first.commit([record], {}, None)
        assert logged == []
        with TransactionalSink(settings, name), capture_logs() as logged, pytest.raises(CommitError):
            first.commit([record], {}, None)
        told = [line for line in logged if line["log_level"] == "error"]
        assert [(line["event"], line["transactional_id"]) for line in told] == [
            ("another producer took the transactional id over", name)
        ]

"""The record's head reaches a real broker, and what was published shows a record that is not as it was."""

import shutil
from functools import partial

import pytest
import streams
from streams import produce

from deploy.record.chain import Act
from deploy.record.heads import HeadPublisher, HeadsDifferError, accept, compare
from deploy.record.record import Record
from ingest.kafka.access import kafka_options
from ingest.kafka.topics import TopicError

pytestmark = pytest.mark.system

await_that = partial(streams.await_that, timeout_s=20)


def publisher(record, settings, topic):
    options = kafka_options(settings)
    return HeadPublisher(record, lambda: 0, options, topic, interval_s=0.1, timeout_s=10)


def size(running):
    return running.newest.size if running.newest else 0


def test_heads_follow_the_acts_and_a_restored_copy_is_noticed_and_accepted(tmp_path, settings, make_topic):
    topic, path = make_topic(compacted=True), tmp_path / "deploy.sqlite"
    record = Record(f"sqlite:///{path}")
    with publisher(record, settings, topic) as running:
        record.append(Act("ada", "label", "label 1"))
        await_that(lambda: size(running) == 1)
        record.close()
        shutil.copy(path, tmp_path / "backup.sqlite")
        record.append(Act("ada", "label", "label 2"), Act("bo", "undo", "label 1"))
        await_that(lambda: size(running) == 3)
    produce(settings.bootstrap_servers, topic, b"no head", key=b"x")
    heads = running.read()
    assert [head.size for head in heads] == [1, 3]
    compare(record, heads)
    record.close()

    restored = Record(f"sqlite:///{tmp_path / 'backup.sqlite'}")
    restored.append(Act("eve", "label", "label 9"))
    with publisher(restored, settings, topic) as running:
        await_that(lambda: "row 3 of the record is gone" in (running.problem or ""))
        assert [head.size for head in running.read()] == [1, 3]
        with pytest.raises(HeadsDifferError) as differs:
            compare(restored, running.read())
        accept(restored, running.read(), "ada", differs.value.name, "restored on purpose")
        with pytest.raises(HeadsDifferError):  # the database alone settles nothing
            compare(restored, running.read())
        running.accept("ada", differs.value.name, "restored on purpose")
        await_that(lambda: running.problem is None and size(running) == 4)
        compare(restored, running.read())
    restored.close()


def test_without_the_topic_the_reason_is_told_and_nothing_is_lost(tmp_path, settings, make_topic):
    record = Record(f"sqlite:///{tmp_path}/deploy.sqlite")
    record.append(Act("ada", "label", "label 1"))
    waiting = publisher(record, settings, "no-such-topic")
    with pytest.raises(TopicError, match="no topic"):
        waiting.look()
    again = publisher(record, settings, make_topic(compacted=True))
    again.look()
    assert size(again) == 1
    record.close()


def test_a_chain_computed_anew_differs_from_what_another_server_published(tmp_path, settings, make_topic):
    topic, path = make_topic(compacted=True), tmp_path / "deploy.sqlite"
    record = Record(f"sqlite:///{path}")
    record.append(Act("ada", "label", "label 1"))
    record.close()
    shutil.copy(path, tmp_path / "other.sqlite")
    record.append(Act("ada", "approve", "a" * 64))
    publisher(record, settings, topic).look()
    other = Record(f"sqlite:///{tmp_path / 'other.sqlite'}")
    other.append(Act("eve", "approve", "b" * 64))
    with pytest.raises(HeadsDifferError, match="computed anew"):
        publisher(other, settings, topic).look()
    record.close()
    other.close()

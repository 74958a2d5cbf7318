"""A broker that does not tell which topic is read, while it goes on giving out records."""

import time
import uuid
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from ingest.kafka.same_topic import SameTopic
from ingest.kafka.sink import CommitError, TransactionalSink
from ingest.kafka.source import Source
from ingest.kafka.topics import ensure_topics, ingest_topics
from ingest.records import InRecord
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system


def test_what_came_while_no_broker_tells_its_topic_has_no_offsets_and_comes_again_once_and_in_order(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = uuid.uuid4().hex
    settings = IngestSettings(bootstrap_servers=broker, topic_prefix=name)
    ensure_topics(settings, ingest_topics(settings, partitions=2))
    producer = KafkaProducer(bootstrap_servers=broker)
    for number in range(12):
        producer.send(settings.media_topic, value=b"%d" % number, key=b"%d" % number)
    producer.close()
    with TransactionalSink(settings, f"slot-{name}") as sink, Source(settings, f"group-{name}") as source:
        first: list[InRecord] = []
        deadline = time.monotonic() + 180
        while len(first) < 2:
            assert time.monotonic() < deadline
            first += source.poll(2 - len(first), timeout_s=0.5)
        sink.commit([], source.offsets_after(first[:1]), source.group_metadata())

        def silent(*arguments: Any) -> None:
            raise KafkaTimeoutError("no broker answers")

        with monkeypatch.context() as patched:
            patched.setattr(SameTopic, "confirm", silent)
            unsure: list[InRecord] = []
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
        batches: list[list[InRecord]] = []
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

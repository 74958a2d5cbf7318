"""A topic gets more partitions under a running worker, and a poll ends before the group is formed anew."""

import time
import uuid
from collections.abc import Callable

import pytest
from kafka import KafkaAdminClient

from ingest.kafka.same_topic import fresh_topic_id
from ingest.kafka.source import Source
from ingest.kafka.topics import Topic, ensure_topics
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system


def await_that(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_poll_that_ends_while_the_group_is_formed_anew_leaves_no_member_outside(broker: str) -> None:
    settings = IngestSettings(bootstrap_servers=broker, topic_prefix=uuid.uuid4().hex)
    topic = settings.media_topic
    ensure_topics(settings, [Topic(topic, 1_200_000)])
    with Source(settings, f"g-{uuid.uuid4().hex}") as source:

        def reads(partitions: int) -> bool:
            source.poll(1, 0.5)
            return source.assigned() == {(topic, number) for number in range(partitions)}

        await_that(lambda: reads(1))
        admin = KafkaAdminClient(bootstrap_servers=broker)
        admin.create_partitions({topic: 2})
        admin.close()
        coordinator = source._consumer._coordinator

        def changed() -> bool:
            fresh_topic_id(source._consumer, topic, 10_000)
            return len(coordinator._metadata_snapshot[topic]) == 2

        await_that(changed)
        source.poll(1, 0.0)
        await_that(lambda: coordinator._join_task is None or coordinator._join_task.is_done)
        await_that(lambda: reads(2), 20)

"""What a worker reads off the releases topic of a real broker, whoever wrote it."""

import json
import time
from collections.abc import Callable

import pytest
from kafka import KafkaProducer

from detector.records import Rollout
from detector.serving.releases import ReleaseFollower
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system


def rollout(sequence: int, epoch: int = 0) -> Rollout:
    return Rollout(ledger="0" * 32, epoch=epoch, sequence=sequence, stable="a" * 64)


def test_the_newest_rollout_is_the_last_one_written_whatever_lies_between(
    settings: IngestSettings, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(compacted=True)
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

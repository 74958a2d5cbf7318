"""Detector workers are killed, stopped and replaced: each item has one answer, in the order of its key."""

import os
import random
import signal
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from bars import Bar
from dying import POINTS, Slot
from kafka import KafkaProducer
from streams import await_that, reader_of
from taken_back import picture_of

from deploy.layouts import all_topics
from detector.records import VERDICTS, Verdict
from detector.release.artifact import Artifact
from detector.settings import DetectorSettings
from ingest.kafka.topics import ensure_topics
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system

PARTITIONS, KEYS = 4, 40
PICTURES = [picture_of(seed) for seed in range(16)]
MOST_STILL_S = 75.0
"""A member that is away is put out after 9 s, and what it left open is ended after 60 more."""


class Answers:
    """Every committed verdict, as it comes, and how long each partition stood still while items waited."""

    def __init__(self, ingest: IngestSettings) -> None:
        self._ingest = ingest
        self._reader = reader_of(ingest.bootstrap_servers, ingest.topic(VERDICTS))
        self.counted = Counter[str]()
        self.order = defaultdict[bytes, list[int]](list)
        self.still_s = 0.0
        self._waiting = Counter[int]()
        self._since: dict[int, float] = {}
        self._sent = set[str]()

    def send(self, numbers: range) -> None:
        """Send pictures, each key's to one partition."""
        producer = KafkaProducer(bootstrap_servers=self._ingest.bootstrap_servers, linger_ms=5)
        sent = [
            producer.send(
                self._ingest.media_topic,
                PICTURES[n % len(PICTURES)],
                b"key %d" % (n % KEYS),
                partition=n % KEYS % PARTITIONS,
            )
            for n in numbers
        ]
        for future in sent:
            at = future.get(60)
            self._sent.add(f"{at.topic}-{at.partition}-{at.offset}")
            self._since.setdefault(at.partition, time.monotonic())
            self._waiting[at.partition] += 1
        producer.close()

    def read(self) -> int:
        now = time.monotonic()
        for records in self._reader.poll(timeout_ms=100).values():
            for record in records:
                verdict = Verdict.model_validate_json(record.value)
                partition = verdict.item.partition
                self.counted[verdict.id] += 1
                self.order[record.key].append(verdict.item.offset)
                self.still_s = max(self.still_s, now - self._since[partition])
                self._waiting[partition] -= 1
                self._since[partition] = now
        return len(self.counted)

    def stands_still_s(self) -> float:
        """For how long the partition that waits the longest has had no answer."""
        now = time.monotonic()
        still = (now - self._since[each] for each, count in self._waiting.items() if count > 0)
        return max(still, default=0.0)

    @property
    def lost(self) -> int:
        return len(self._sent - self.counted.keys())

    @property
    def twice(self) -> int:
        return sum(count > 1 for count in self.counted.values())

    @property
    def in_order(self) -> bool:
        return all(offsets == sorted(offsets) for offsets in self.order.values())

    def close(self) -> None:
        self._reader.close()


@pytest.fixture
def answers(settings: IngestSettings) -> Iterator[Answers]:
    ensure_topics(settings, all_topics(settings, PARTITIONS))
    made = Answers(settings)
    yield made
    made.close()


@pytest.fixture
def slots(settings: IngestSettings, untrained_artifact: Artifact) -> Iterator[list[Slot]]:
    """Two slots of one group, whose workers run."""
    detector = DetectorSettings(group_id=uuid.uuid4().hex, max_batch_items=8)
    made = [Slot(settings, detector, untrained_artifact.folder) for _ in range(2)]
    for slot in made:
        slot.start()
    yield made
    for slot in made:
        slot.kill()


@pytest.mark.bar("B1")
def test_killed_at_each_point_and_at_random_workers_answer_each_item_once_in_its_keys_order(
    answers: Answers, slots: list[Slot], bar: Bar
) -> None:
    count, kills = bar.times(360, 10_000), bar.times(6, 30)
    chance = random.Random(0)
    threading.Thread(target=answers.send, args=(range(count),)).start()
    for kill in range(kills):
        due = count * (kill + 1) // (kills + 2)
        await_that(lambda due=due: answers.read() >= due, 600)  # type: ignore[misc]
        slot = slots[kill % 2]
        if kill % (len(POINTS) + 1) < len(POINTS):
            slot.arm(POINTS[kill % (len(POINTS) + 1)])
            await_that(lambda slot=slot: answers.read() and not slot.process.is_alive(), 600)  # type: ignore[misc]
        else:
            until = time.monotonic() + chance.random()
            while time.monotonic() < until:
                answers.read()
        slot.kill()
        slot.start()
    await_that(lambda: answers.read() >= count, 600)
    bar.count(kills, lost=answers.lost, twice=answers.twice, recovery_s=answers.still_s)
    assert (answers.lost, answers.twice, answers.in_order) == (0, 0, True)


@pytest.mark.bar("B1")
def test_control_where_offsets_are_committed_apart_a_kill_between_doubles(
    answers: Answers, slots: list[Slot], bar: Bar
) -> None:
    for slot in slots:
        slot.kill()
    slot = slots[0]
    slot.apart = True
    slot.start()
    slot.arm("after send")
    answers.send(range(40))
    await_that(lambda: not slot.process.is_alive(), 300)
    slot.kill()
    slot.start()
    await_that(lambda: answers.read() >= 40, 300)
    bar.count(1, lost=answers.lost, twice=answers.twice)
    assert answers.twice


@pytest.mark.bar("B3")
def test_a_worker_that_stood_still_past_its_session_commits_nothing_any_more(
    answers: Answers, slots: list[Slot], bar: Bar
) -> None:
    times, sent = bar.times(1, 10), 0
    for time_ in range(times):
        zombie = slots[time_ % 2]
        zombie.arm("after poll" if time_ % 2 == 0 else "before commit", signal.SIGSTOP)
        while not zombie.came_to_it:  # until it has a batch in hand
            answers.send(range(sent, sent + 40))
            sent += 40
            answers.read()
        answers.send(range(sent, sent + 40))
        sent += 40
        await_that(lambda sent=sent: answers.read() >= sent, 300)  # type: ignore[misc]  # by the other one
        os.kill(zombie.process.pid, signal.SIGCONT)
        answers.send(range(sent, sent + 40))
        sent += 40
        await_that(lambda sent=sent: answers.read() >= sent, 300)  # type: ignore[misc]
    bar.count(times, lost=answers.lost, twice=answers.twice, recovery_s=answers.still_s)
    assert (answers.lost, answers.twice, answers.in_order) == (0, 0, True)


@pytest.mark.bar("B5")
def test_while_workers_come_and_go_no_partition_stands_still_for_long(
    answers: Answers, slots: list[Slot], bar: Bar
) -> None:
    turns = bar.times(3, 10)
    for turn in range(turns):
        sent = 60 * (turn + 1)
        answers.send(range(sent - 60, sent))
        slot = slots[turn % 2]
        if turn % 3 == 2:
            slot.kill()
        else:
            slot.process.terminate()
            slot.process.join(60)
            assert slot.process.exitcode == 0
        await_that(lambda sent=sent: answers.read() >= sent - 30, 300)  # type: ignore[misc]
        slot.start()
        await_that(lambda sent=sent: answers.read() >= sent, 300)  # type: ignore[misc]
    bar.count(turns, lost=answers.lost, twice=answers.twice, recovery_s=answers.still_s)
    assert (answers.lost, answers.twice, answers.in_order) == (0, 0, True)
    assert answers.still_s < MOST_STILL_S

"""What producers get of a stream: every committed verdict, and whether one is lost, doubled or late."""

import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from dying import Slot
from kafka import KafkaProducer
from streams import reader_of
from taken_back import picture_of

from deploy.layouts import all_topics
from detector.records import VERDICTS, Verdict
from detector.release.artifact import Artifact
from detector.settings import DetectorSettings
from ingest.kafka.topics import ensure_topics
from ingest.settings import IngestSettings

PARTITIONS, KEYS = 4, 40
PICTURES = [picture_of(seed) for seed in range(16)]


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

    def send(self, count: int) -> None:
        """Send so many pictures more, each key's to one partition."""
        producer = KafkaProducer(bootstrap_servers=self._ingest.bootstrap_servers, linger_ms=5)
        sent = [
            producer.send(
                self._ingest.media_topic,
                PICTURES[n % len(PICTURES)],
                b"key %d" % (n % KEYS),
                partition=n % KEYS % PARTITIONS,
            )
            for n in range(self.sent, self.sent + count)
        ]
        for future in sent:
            at = future.get(60)
            self._sent.add(f"{at.topic}-{at.partition}-{at.offset}")
            self._since.setdefault(at.partition, time.monotonic())
            self._waiting[at.partition] += 1
        producer.close()

    @property
    def sent(self) -> int:
        return len(self._sent)

    def reach(self, count: int | None = None) -> bool:
        """Read on; whether so many, or all, are answered."""
        return self.read() >= (self.sent if count is None else count)

    def go_on(self) -> bool:
        """Read on, and send more where all is answered: what waits for a batch must get one."""
        if self.reach():
            self.send(KEYS)
        return True

    def read(self) -> int:
        now = time.monotonic()
        for records in self._reader.poll(timeout_ms=100).values():
            for record in records:
                verdict = Verdict.model_validate_json(record.value)
                partition = verdict.item.partition
                self.counted[verdict.id] += 1
                self.order[record.key].append(verdict.item.offset)
                self.still_s = max(self.still_s, now - self._since.get(partition, now))
                self._waiting[partition] -= 1
                self._since[partition] = now
                if not self._waiting[partition]:
                    del self._since[partition]
        return len(self.counted)

    @property
    def lost(self) -> int:
        return len(self._sent - self.counted.keys())

    @property
    def twice(self) -> int:
        return sum(count > 1 for count in self.counted.values())

    @property
    def stands_still_s(self) -> float:
        """How long an item has waited while nothing of its partition was answered, seconds."""
        return max((time.monotonic() - since for since in self._since.values()), default=0.0)

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

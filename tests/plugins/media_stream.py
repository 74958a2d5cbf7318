"""Pictures that stream through a whole stack: when each was answered, by which release, and how often."""

import gc
import io
import itertools
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Self

import numpy as np
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from PIL import Image
from streams import await_that

from detector.reading import parse_record
from detector.records import COMPARISONS, VERDICTS, Comparison, Withdrawal
from ingest.dead_letters import PREFIX
from ingest.kafka.access import kafka_options
from ingest.settings import IngestSettings

_A_SECOND, _MOST_OPEN = 15, 100
"""Pictures a second, and so many at most without an answer."""


class Stream:
    """Pictures at a steady rate, each of a source of its own, and when what of each could be read.

    Times are those of time.monotonic(), by the item's id. A dead letter is an answer, too.
    """

    def __init__(self, ingest: IngestSettings) -> None:
        self.sent_s: dict[str, float] = {}
        self.answered_s: dict[str, float] = {}
        self.release: dict[str, str] = {}
        self.answers, self.dead_letters = Counter[str](), Counter[str]()
        self.scored_by_both_s: dict[str, float] = {}
        self.answered_by_challenger_s: dict[str, float] = {}
        self._ingest = ingest
        self._stop, self._enough = threading.Event(), threading.Event()
        work = (self._send, self._read)
        self._threads = [threading.Thread(target=each, name=each.__name__, daemon=True) for each in work]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Send no more; what was sent is in its topic."""
        self._enough.set()
        self._stop.set()
        for thread in self._threads:
            thread.join()
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()  # to which kafka-python leaves the sockets of connections that were refused

    def send(self, values: Iterable[bytes]) -> None:
        """Send these beside the others, at once."""
        producer = KafkaProducer(**kafka_options(self._ingest), acks="all")
        for number, value in enumerate(values):
            producer.send(self._ingest.media_topic, value, **_of_source(number)).add_callback(
                self._sent, time.monotonic()
            )
        producer.flush()
        producer.close()

    def drain(self, timeout_s: float = 300) -> None:
        """Send no more, read what is answered until then, and end: what is lost or comes twice is known."""
        self._enough.set()
        self._threads[0].join()
        with suppress(AssertionError):
            await_that(lambda: not self.lost, timeout_s)
        self.end()

    @property
    def lost(self) -> int:
        return len(self.sent_s.keys() - self.answered_s.keys())

    @property
    def twice(self) -> int:
        return sum(count > 1 for id, count in self.answers.items() if id in self.sent_s)

    def released(self, began_s: float) -> set[str]:
        """The releases that answered what was sent since then."""
        return {release for id, release in list(self.release.items()) if self.sent_s.get(id, 0.0) > began_s}

    def since(self, began_s: float, what: dict[str, float]) -> bool:
        """Whether there is such a time of an item that was sent since then."""
        return any(self.sent_s.get(id, 0.0) > began_s for id in list(what))

    def recovery_s(self) -> float:
        """How long it takes from now until something that is sent from now on is answered, seconds."""
        now_s = time.monotonic()
        await_that(lambda: self.since(now_s, self.answered_s), 400)
        return time.monotonic() - now_s

    def goes_on_s(self) -> float:
        """How long it takes from now until anything is answered, whenever it was sent, seconds."""
        now_s, before = time.monotonic(), len(self.answered_s)
        await_that(lambda: len(self.answered_s) > before, 400)
        return time.monotonic() - now_s

    def is_answered(self, until_s: float) -> bool:
        return all(id in self.answered_s for id, at in list(self.sent_s.items()) if at <= until_s)

    def worst_s(self, began_s: float, until_s: float) -> float:
        """The longest wait for an answer of the items that were sent in that time, seconds; 0: none was."""
        answered = self.sent_s.keys() & self.answered_s.keys()
        sent = [id for id in answered if began_s <= self.sent_s[id] <= until_s]
        return max((self.answered_s[id] - self.sent_s[id] for id in sent), default=0.0)

    def _send(self) -> None:
        producer = KafkaProducer(**kafka_options(self._ingest), acks="all")
        for number in itertools.count():
            while self.lost > _MOST_OPEN and not self._enough.is_set():
                self._enough.wait(0.05)
            if self._enough.wait(1 / _A_SECOND):
                break
            handed_s = time.monotonic()
            with suppress(KafkaError):
                producer.send(self._ingest.media_topic, picture(number), **_of_source(number)).add_callback(
                    self._sent, handed_s
                )
        producer.flush()
        producer.close()

    def _sent(self, handed_s: float, at: Any) -> None:
        self.sent_s[f"{at.topic}-{at.partition}-{at.offset}"] = handed_s

    def _read(self) -> None:
        verdicts, comparisons = map(self._ingest.topic, (VERDICTS, COMPARISONS))
        reader = KafkaConsumer(
            verdicts,
            comparisons,
            self._ingest.dead_letters_topic,
            **kafka_options(self._ingest),
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        while not self._stop.is_set():
            with suppress(KafkaError):  # the broker was killed
                for records in reader.poll(timeout_ms=50).values():
                    for record in records:
                        self._take(record, verdicts, comparisons)
        reader.close()

    def _take(self, record: Any, verdicts: str, comparisons: str) -> None:
        if record.topic == verdicts:
            verdict = parse_record(record.value, record.headers)
            if isinstance(verdict, Withdrawal) or verdict.supersedes is not None:
                return  # of a release that was taken back
            self.release[verdict.id] = verdict.release
            self._answered(verdict.id)
        elif record.topic != comparisons:
            facts = {name.removeprefix(PREFIX): text.decode() for name, text in record.headers}
            id = "-".join(facts[name] for name in ("topic", "partition", "offset"))
            self.dead_letters[id] += 1
            self._answered(id)
        elif (comparison := Comparison.model_validate_json(record.value)).challenger.label is not None:
            self.scored_by_both_s.setdefault(comparison.id, time.monotonic())
            if comparison.answered == "challenger":
                self.answered_by_challenger_s.setdefault(comparison.id, time.monotonic())

    def _answered(self, id: str) -> None:
        self.answers[id] += 1
        self.answered_s.setdefault(id, time.monotonic())


def _of_source(number: int) -> dict[str, Any]:
    """A record's key, which alone makes no source, and the header that does."""
    name = f"source {number}".encode()
    return {"key": name, "headers": [("source", name)]}


def picture(number: int) -> bytes:
    """A picture of bright noise, unlike a probe's crops, whose mean is 127."""
    file, rng = io.BytesIO(), np.random.default_rng(number)
    Image.fromarray(rng.integers(128, 256, (72, 80, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()

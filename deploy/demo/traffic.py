"""The demonstration's producer, and a reader that is independent of everything it checks."""

import mimetypes
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import httpx
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from deploy.client.connection import ClientError
from deploy.demo.claims import Phase, Sent
from detector.reading import parse_record
from detector.records import VERDICTS, Verdict, Withdrawal
from ingest.kafka.access import kafka_options
from ingest.settings import IngestSettings
from updater.benchmark.synthetic.stream import MediaSample

POLL_S = 0.2
SILENCE_S = 60.0
_BATCH_BYTES = 262_144


class TrafficError(ClientError):
    """The stream did not answer in time. Fatal for the demonstration."""


class Traffic:
    """Sends media as CloudEvents and collects the answers, read_committed and without a group.

    Every answer is kept, the second one too: verdict_ids and dead_letter_ids are lists. answered_s is when
    the first verdict of each message could be read, by time.perf_counter().
    """

    def __init__(self, settings: IngestSettings) -> None:
        self.sent: list[Sent] = []
        self.verdicts: dict[str, Verdict] = {}
        self.verdict_ids: list[str] = []
        self.dead_letter_ids: list[str] = []
        self.answered_s: dict[str, float] = {}
        self._topic = settings.media_topic
        self._verdicts_topic = settings.topic(VERDICTS)
        options = kafka_options(settings)
        # Photographs are larger than a batch's default, and one batch each costs the broker ten times
        # the time of several together.
        self._producer = KafkaProducer(**options, acks="all", linger_ms=5, batch_size=_BATCH_BYTES)
        own = {"group_id": None, "enable_auto_commit": False, "isolation_level": "read_committed"}
        self._consumer = KafkaConsumer(**options, **own)
        partitions = [
            TopicPartition(topic, partition)
            for topic in (self._verdicts_topic, settings.dead_letters_topic)
            for partition in self._consumer.partitions_for_topic(topic) or ()
        ]
        self._consumer.assign(partitions)
        self._consumer.seek_to_beginning(*partitions)
        self._stop = threading.Event()
        self._reader = threading.Thread(target=self._read, name="answers", daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._reader.join()
        self._consumer.close()
        self._producer.close()

    def send(
        self, samples: Iterable[MediaSample], phase: Phase, *, per_second: float | None = None
    ) -> list[Sent]:
        """Send the samples as binary CloudEvents, at most per_second; return once the broker has all."""
        futures = []
        due = time.monotonic()
        for sample in samples:
            if per_second is not None:
                self._stop.wait(max(0.0, due - time.monotonic()))
                due += 1 / per_second
            headers = [
                ("ce_specversion", b"1.0"),
                ("ce_id", str(uuid.uuid4()).encode()),
                ("ce_source", b"forgewatch-demo"),
                ("ce_type", b"forgewatch.media"),
                ("content-type", (mimetypes.guess_type(sample.name)[0] or "").encode()),
            ]
            handed_s = time.perf_counter()
            future = self._producer.send(self._topic, sample.data, headers=headers)
            futures.append((sample.family, handed_s, future))
        return self._record_sent(futures, phase)

    def send_hostile(self, values: Iterable[bytes | None]) -> list[Sent]:
        """Send values that are no media, as they are."""
        # With a key, since the client refuses a record that has neither.
        futures = [(None, 0.0, self._producer.send(self._topic, value, key=b"hostile")) for value in values]
        return self._record_sent(futures, "hostile")

    def _record_sent(self, futures: Sequence[tuple[str | None, float, Any]], phase: Phase) -> list[Sent]:
        self._producer.flush()
        sent = []
        for family, handed_s, future in futures:
            position = future.get(timeout=30)
            name = f"{position.topic}-{position.partition}-{position.offset}"
            sent.append(Sent(name, family, phase, handed_s))
        self.sent += sent
        return sent

    def answers(self) -> tuple[list[str], list[str]]:
        """The ids of all verdicts and of all dead letters that came, each as often as it came."""
        return list(self.verdict_ids), list(self.dead_letter_ids)

    def wait(self, sent: Iterable[Sent], progress: Callable[[int, int], None]) -> None:
        """Return once each message has an answer. Raises TrafficError after a minute without a new one."""
        waiting = {message.id for message in sent}
        total, quiet_since = len(waiting), time.monotonic()
        while waiting:
            answered = waiting & (self.verdicts.keys() | set(self.dead_letter_ids))
            if answered:
                waiting -= answered
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > SILENCE_S:
                raise TrafficError(
                    f"{len(waiting)} of {total} messages have no answer; the last came {SILENCE_S:.0f} s ago"
                )
            progress(total - len(waiting), total)
            self._stop.wait(POLL_S)

    def _read(self) -> None:
        while not self._stop.is_set():
            polled, now_s = self._consumer.poll(timeout_ms=int(POLL_S * 1000)), time.perf_counter()
            for partition, records in polled.items():
                for record in records:
                    if partition.topic == self._verdicts_topic:
                        verdict = parse_record(record.value, record.headers)
                        if isinstance(verdict, Withdrawal) or verdict.supersedes is not None:
                            continue  # no answer to an item: it had one
                        self.verdict_ids.append(verdict.id)
                        self.answered_s.setdefault(verdict.id, now_s)
                        self.verdicts.setdefault(verdict.id, verdict)
                    else:
                        errors = {
                            name.rpartition(".")[2]: value.decode()
                            for name, value in record.headers
                            if "errors." in name
                        }
                        self.dead_letter_ids.append("{topic}-{partition}-{offset}".format(**errors))


_SECONDS = "_seconds_sum"


def totals(metrics_url: str) -> dict[str, float]:
    """Every sample's total by name, over all labels. Raises httpx.HTTPError."""
    text = httpx.get(metrics_url, trust_env=False).raise_for_status().text
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def seconds_spent(metrics_url: str) -> dict[str, float]:
    """Seconds that each part has spent, by the name of its metric up to `_seconds`."""
    spent = {name: value for name, value in totals(metrics_url).items() if name.endswith(_SECONDS)}
    return {name.removesuffix(_SECONDS): value for name, value in spent.items()}

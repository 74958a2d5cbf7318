"""The releases topic is brought to what the ledger says: after a move, at start, and ever again.

The ledger's row comes first. A crash between the row and the topic is mended by the next look,
which reads the topic and writes only where it differs.
"""

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import structlog
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from pydantic import ValidationError

from deploy.releases import metrics
from deploy.releases.approval import fold
from deploy.releases.ledger import Ledger, LedgerError
from detector.records import Rollout
from ingest.access import barred

_KEY = b"stable"

log = structlog.get_logger()


class PublishError(Exception):
    """The releases topic could not be read or written; retryable."""


def read_rollout(options: Mapping[str, Any], topic: str, timeout_s: float) -> Rollout | None:
    """The newest Rollout of the topic; None where there is none, or where what lies there is none.

    options are kafka-python's connection options (ingest.settings.kafka_options). Raises
    PublishError where the broker is away or the topic does not exist.
    """
    if problem := barred(options, timeout_s):
        raise PublishError(problem)
    try:
        consumer = KafkaConsumer(
            **options,
            group_id=None,
            enable_auto_commit=False,
            bootstrap_timeout_ms=int(timeout_s * 1000),
        )
    except KafkaError as error:
        raise PublishError(f"cannot reach the broker: {error}") from error
    try:
        numbers = consumer.partitions_for_topic(topic)
        if not numbers:
            raise PublishError(f"there is no topic {topic}")
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions, timeout_ms=int(timeout_s * 1000))
        newest = None
        deadline = time.monotonic() + timeout_s
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            if time.monotonic() > deadline:
                raise PublishError(f"reading {topic} took longer than {timeout_s} s")
            for records in consumer.poll(timeout_ms=200).values():
                for record in records:
                    if record.key == _KEY:
                        newest = _parse(record.value)
        return newest
    except KafkaError as error:
        raise PublishError(f"cannot read {topic}: {error}") from error
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)


def write_rollout(options: Mapping[str, Any], topic: str, rollout: Rollout, timeout_s: float) -> None:
    """Write one Rollout and wait until all replicas have it; raises PublishError."""
    timeout_ms = int(timeout_s * 1000)
    try:
        producer = KafkaProducer(
            **options, acks="all", bootstrap_timeout_ms=timeout_ms, max_block_ms=timeout_ms
        )
    except KafkaError as error:
        raise PublishError(f"cannot reach the broker: {error}") from error
    try:
        sent = producer.send(topic, key=_KEY, value=rollout.model_dump_json().encode())
        sent.get(timeout=timeout_s)
    except KafkaError as error:
        raise PublishError(f"cannot write {topic}: {error}") from error
    finally:
        producer.close(timeout=1)


class Publisher:
    """Keeps the releases topic at the ledger's state, in a thread of its own, while it is entered."""

    def __init__(
        self, ledger: Ledger, options: Mapping[str, Any], topic: str, *, interval_s: float, timeout_s: float
    ) -> None:
        self._ledger = ledger
        self._options = dict(options)
        self._topic = topic
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.problem: str | None = "not looked yet"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def wake(self) -> None:
        """Look now: the ledger has a new row."""
        self._wake.set()

    def heal(self) -> None:
        """Compare the topic with the ledger and write where they differ; raises PublishError, LedgerError."""
        wanted = fold(self._ledger.events()).rollout(self._ledger.id, self._ledger.epoch)
        found = read_rollout(self._options, self._topic, self._timeout_s)
        if wanted is not None and found != wanted:
            write_rollout(self._options, self._topic, wanted, self._timeout_s)
            log.info("rollout published", stable=wanted.stable, sequence=wanted.sequence)
        metrics.PUBLISHED_SEQUENCE.set(wanted.sequence if wanted else 0)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                self.heal()
                self.problem = None
            except (PublishError, LedgerError) as error:
                metrics.PUBLISH_FAILURES.inc()
                if str(error) != self.problem:
                    log.warning("cannot publish the rollout", error=str(error))
                self.problem = str(error)
            # A failed look is soon repeated: an approval waits for it.
            self._wake.wait(self._interval_s if self.problem is None else min(1.0, self._interval_s))


def _parse(value: bytes | None) -> Rollout | None:
    try:
        return Rollout.model_validate_json(value or b"")
    except ValidationError:
        return None  # whoever wrote this is not the deploy server; the next look writes over it

"""Writes results and the offsets they come from in one Kafka transaction."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NoReturn, Self, TypeVar

import structlog
from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import (
    AuthorizationError,
    InvalidProducerEpochError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFencedError,
    TransactionalIdAuthorizationFailedError,
    UnsupportedVersionError,
)
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.serializer import Serializer

from ingest import metrics
from ingest.kafka.access import REQUEST_TIMEOUT_S, as_refusal, kafka_options
from ingest.metrics import Place
from ingest.records import OutRecord, Position
from ingest.settings import IngestSettings

log = structlog.get_logger()

# How long one whole transaction is waited for before its producer is thrown away: three answers' time.
COMMIT_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 2.0
_NULL = b"\0forgewatch.null"
_T = TypeVar("_T")


class SinkError(Exception):
    """A transaction was not committed, as far as is known."""


class CommitError(SinkError):
    """Retryable: rewind the source, which asks the broker what holds, and do the records again."""


class SinkRefusedError(SinkError):
    """Fatal: the broker does not allow this producer to write, or not to use transactions."""


class RecordTooLargeError(SinkError):
    """Fatal for the record, which is in the way: nothing was committed, and it would never fit.

    limit_bytes is None where it is the topic's own, which the broker does not say.
    """

    def __init__(self, record: OutRecord, size_bytes: int, limit_bytes: int | None) -> None:
        limit = "its topic takes less" if limit_bytes is None else f"the limit is {limit_bytes}"
        super().__init__(f"a record for {record.topic} has {size_bytes} bytes; {limit}")
        self.record = record


def record_bytes(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> int:
    """Bound a record's size on the wire, alone in its batch, from above: bytes, as the producer counts."""
    return int(DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, headers))


class TransactionalSink:
    """A transactional producer that is thrown away after every doubt; a context manager, for one thread.

    kafka-python speaks the first version of the transaction protocol, in which a delayed end of one
    transaction can end a later one. So after any error, after any commit slower than a request's timeout,
    and after any request that was sent again because its connection broke, the producer is replaced by
    one with the same transactional id: that raises the epoch, and what of the old one may still arrive is
    refused. Its waits have no timeout, hence the watchdog.

    transactional_id must be stable for a worker's slot and in use by nobody else.
    """

    def __init__(self, settings: IngestSettings, transactional_id: str) -> None:
        self._settings = settings
        self._id = transactional_id
        self._producer: Any = None
        self._unanswered: list[str] = []

    def __enter__(self) -> Self:
        self.recover()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def commit(self, records: Sequence[OutRecord], offsets: Mapping[Place, Position], group: Any) -> None:
        """Write all records and offsets, or none, as one transaction.

        offsets are where to read on, by (topic, partition); group is the source's `group_metadata()`, of
        the round in which the records were read.

        Raises CommitError (retryable: rewind the source), SinkRefusedError, RecordTooLargeError.
        """
        for record in records:
            size = record_bytes(record.key, record.value, record.headers)
            if size > self._settings.max_record_bytes:
                raise RecordTooLargeError(record, size, self._settings.max_record_bytes)
        if offsets and group.generation_id < 0:
            # The broker takes offsets without a generation from anyone, whoever reads the partition now.
            raise CommitError("the group has put this member out")
        self.recover()
        producer = self._producer
        began = time.monotonic()
        try:
            transaction = partial(_transaction, producer, records, offsets, group)
            commit_s = _run_watched(transaction, COMMIT_TIMEOUT_S)
        except Exception as error:
            self._fail(error)
        metrics.TRANSACTION_SECONDS.observe(time.monotonic() - began)
        metrics.TRANSACTIONS.inc()
        metrics.LAG_SECONDS.on_answers({at: position.offset for at, position in offsets.items()})
        if self._unanswered:
            log.warning("transactional request sent again", requests=self._unanswered)
            self.close()
        elif commit_s > REQUEST_TIMEOUT_S:
            log.warning("commit was slow", seconds=round(commit_s, 3))
            self.close()

    def recover(self) -> None:
        """Have a producer whose predecessor's transaction is decided; does nothing where one is at hand.

        Raises CommitError (the broker does not answer), SinkRefusedError.
        """
        if self._producer is not None:
            return
        timeout_ms = int(REQUEST_TIMEOUT_S * 1000)
        unanswered: list[str] = []
        self._unanswered = unanswered

        def start() -> Any:
            producer = KafkaProducer(
                **kafka_options(self._settings),
                transactional_id=self._id,
                transaction_timeout_ms=int(COMMIT_TIMEOUT_S * 2000),
                max_request_size=self._settings.max_record_bytes,
                request_timeout_ms=timeout_ms,
                delivery_timeout_ms=2 * timeout_ms,
                max_block_ms=timeout_ms,
                bootstrap_timeout_ms=timeout_ms,
                # 100, the default, makes a transaction of 32 records take 81 ms instead of 18.
                retry_backoff_ms=2,
                allow_auto_create_topics=False,
                value_serializer=_NullSerializer(),
            )
            _note_unanswered(producer, unanswered)
            try:
                producer.init_transactions()
            except BaseException:
                _end(producer)
                raise
            return producer

        try:
            self._producer = _run_watched(start, COMMIT_TIMEOUT_S)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        self.close()
        metrics.TRANSACTIONS_FAILED.inc()
        if isinstance(error, AuthorizationError):
            name = self._id if isinstance(error, TransactionalIdAuthorizationFailedError) else ""
            raise SinkRefusedError(str(as_refusal(error, kafka_options(self._settings), name))) from error
        if isinstance(error, (ProducerFencedError, InvalidProducerEpochError)):
            log.error(
                "another producer took the transactional id over",
                transactional_id=self._id,
                advice="give every worker its own, unless a transaction just outlasted its timeout",
            )
        log.warning("transaction failed", error=f"{type(error).__name__}: {error}")
        if isinstance(error, UnsupportedVersionError):
            raise SinkRefusedError(str(error)) from error
        if isinstance(error, (KafkaError, TimeoutError, OSError)):
            raise CommitError(f"{type(error).__name__}: {error}") from error
        raise error

    def close(self) -> None:
        """End the producer; an open transaction is aborted by the next one with the same id."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # Its close waits for what it has in flight; nobody needs that any more.
            threading.Thread(target=_end, args=(producer,), name="sink-end", daemon=True).start()


def _note_unanswered(producer: Any, unanswered: list[str]) -> None:
    """Add the name of each transactional request, from now on, whose connection breaks before an answer.

    kafka-python sends it again, and the broker may still have the first copy before it. One that was
    answered, if only by "not yet", is over.
    """
    manager = producer._transaction_manager
    enqueue = manager._enqueue_request

    def note(handler: Any, complete: Callable[[int, Any], None], correlation_id: int, answer: Any) -> None:
        if isinstance(answer, Exception):
            unanswered.append(type(handler.request).__name__)
        complete(correlation_id, answer)

    def enqueue_watched(handler: Any) -> None:
        # Sent again, a handler comes by once more; on_complete is its own by then.
        if "on_complete" not in vars(handler):
            handler.on_complete = partial(note, handler, handler.on_complete)
        enqueue(handler)

    manager._enqueue_request = enqueue_watched


def _transaction(
    producer: Any, records: Sequence[OutRecord], offsets: Mapping[Place, Position], group: Any
) -> float:
    """Do one whole transaction; return the seconds that its last step, the commit, took."""
    producer.begin_transaction()
    sent = [
        producer.send(out.topic, _NULL if out.value is None else out.value, out.key, list(out.headers))
        for out in records
    ]
    if offsets:
        positions = {
            TopicPartition(*place): OffsetAndMetadata(after.offset, after.topic_id or "", -1)
            for place, after in offsets.items()
        }
        producer.send_offsets_to_transaction(positions, group)
    producer.flush(timeout=REQUEST_TIMEOUT_S)
    sizes = {
        place: record_bytes(record.key, record.value, record.headers)
        for place, record in enumerate(records)
        if isinstance(sent[place].exception, MessageSizeTooLargeError)
    }
    if sizes:  # records that share a batch fail together
        largest = max(sizes, key=sizes.__getitem__)
        raise RecordTooLargeError(records[largest], sizes[largest], None)
    for future in sent:
        future.get(timeout=0)
    began = time.monotonic()
    producer.commit_transaction()
    return time.monotonic() - began


def _run_watched(work: Callable[[], _T], timeout_s: float) -> _T:
    """Run work in a thread that may be left behind. Raises TimeoutError, or what the work raises."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="sink-transaction", daemon=True).start()
    return future.result(timeout_s)


def _end(producer: Any) -> None:
    with contextlib.suppress(Exception):
        producer.close(timeout=_CLOSE_TIMEOUT_S)


class _NullSerializer(Serializer):  # type: ignore[misc]
    """Lets a record with neither key nor value through, which KafkaProducer.send itself refuses."""

    def serialize(self, topic: str, headers: Any, data: bytes) -> bytes | None:
        return None if data is _NULL else data

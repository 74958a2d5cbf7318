"""The memory's process: messages of the unknowns topic become exemplars, each exactly once."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import cycle, islice
from threading import Event, Thread
from typing import get_args
from uuid import uuid4

import structlog
from kafka.errors import KafkaError

from detector.release.artifact import version_of
from detector.unknowns import UnknownMessageError, decode
from ingest.dead_letters import as_fields, dead_letter, printable
from ingest.kafka.sink import CommitError, RecordTooLargeError, TransactionalSink
from ingest.process.health import Heartbeat
from ingest.records import InRecord
from ingest.settings import IngestSettings
from ingest.trace_context import of_headers
from ingest.tracing import Spans
from memory import metrics
from memory.clusters.clustering import keep_clustered
from memory.crops.crop_store import SHARDS, CropStore, CropsUnavailableError
from memory.declarations import declaration_of, label_declared
from memory.features import FEATURE_VERSION, WIDTH, features_of
from memory.index.index import Index
from memory.index.shared_index import Renewal
from memory.intake import Arrival, UnfitItemError, UnfitReason, check, remember
from memory.reextract import reextract
from memory.retention import MOST_ALIKE, Retention, purge_sources, sweep
from memory.settings import MemorySettings
from memory.shift.watch import keep_watch
from memory.source import RETRY_INTERVAL_S, StoredSource, unknowns
from memory.store import RefusedRowError, Store, StoreUnavailableError, save_offsets
from memory.verdict_index import ignore_retracted

RETRYABLE = (
    StoreUnavailableError,
    CropsUnavailableError,
    KafkaError,
    CommitError,
    RecordTooLargeError,
    OSError,
)
STAGE = "memory"
_HOUSEKEEPING_INTERVAL_S = 60.0
_SHARDS_A_ROUND = 8
"""Of the crop store's 256, in one round of housekeeping: to list all of a large one takes minutes."""

log = structlog.get_logger()

# A counter that first shows with its first events has no increase that a rate would see.
for _reason in (*get_args(UnfitReason), "unexpected"):
    metrics.DEAD_LETTERS.labels(_reason)


def run(
    ingest: IngestSettings,
    settings: MemorySettings,
    stop: Event,
    heartbeat: Heartbeat,
    spans: Spans | None = None,
) -> None:
    """Remember unknowns until stop is set; passing faults of Kafka, disk or database are waited out.

    Beside it a thread keeps the list of clusters up to date, and one watches the verdicts. Raises
    WrongStoreError, or ingest.kafka.sink.SinkRefusedError.
    """
    # A computation cannot be stopped and loses nothing, so the process does not wait for its end.
    Thread(target=keep_clustered, args=(settings, stop), name="clustering", daemon=True).start()
    Thread(target=keep_watch, args=(ingest, settings, stop), name="watch", daemon=True).start()
    while not stop.is_set():
        try:
            with ExitStack() as stack:
                worker = MemoryWorker(
                    ingest, settings, stack, spans, lambda: heartbeat.beat("the index is being opened")
                )
                worker.renew(stop, heartbeat)
                source = stack.enter_context(StoredSource(ingest, unknowns(ingest, settings), worker.store))
                while not stop.is_set():
                    heartbeat.beat(None if source.is_member() else "the consumer group has not let it in yet")
                    worker.take(records := source.poll(), source.topic_id)
                    if records or not metrics.LAG_SECONDS.seconds():
                        heartbeat.standing = None
                    worker.keep_house()
        except RETRYABLE as error:
            metrics.FAILURES.inc()
            problem = f"{type(error).__name__}: {error}"
            log.warning("round failed, done again", error=problem)
            heartbeat.standing = problem
            heartbeat.beat()
            stop.wait(RETRY_INTERVAL_S)


class MemoryWorker:
    """The parts of one memory process: database, crops, index, and where bad messages go."""

    def __init__(
        self,
        ingest: IngestSettings,
        settings: MemorySettings,
        stack: ExitStack,
        spans: Spans | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._ingest, self._settings, self._spans = ingest, settings, spans
        self.store = Store(settings.database_url)
        stack.callback(self.store.close)
        self._crops = CropStore(settings.crops_url)
        self._index = Index.open(settings.index_path, self.store, FEATURE_VERSION, WIDTH, beat)
        self._renewal = Renewal(self.store, settings.index_path)
        # A dead letter may be written twice after a crash, so no identity need outlive this process.
        self._letters = TransactionalSink(ingest, f"{settings.group_id}-{uuid4().hex}")
        stack.callback(self._letters.close)
        self._retention = Retention(settings.retention_days)
        self._shards = cycle(SHARDS)
        self._house_kept = -math.inf

    def renew(self, stop: Event, heartbeat: Heartbeat) -> None:
        """Bring older exemplars to today's feature version, before anything is compared with them.

        Raises StoreUnavailableError or CropsUnavailableError.
        """
        done = reextract(self.store, self._crops, stop, heartbeat.beat)
        metrics.REEXTRACTED.inc(done.renewed)
        metrics.LEFT_BEHIND.set(done.left_behind)

    def take(self, records: Sequence[InRecord], topic_id: str | None = None) -> None:
        """Remember a batch: dead letters, then crops, then rows and offsets in one SQL transaction.

        topic_id is the broker's id of the topic that the records are from.
        Raises one of RETRYABLE: then nothing of the batch is on record, and it is to be read again.
        """
        if not records:
            return
        began_ns = time.time_ns()
        good: list[tuple[InRecord, Arrival]] = []
        bad: list[tuple[InRecord, Exception]] = []
        for record in records:
            try:
                good.append((record, arrival_of(record)))
            except UnfitItemError as error:
                bad.append((record, error))
        try:
            self._bury(bad, began_ns)
            self._remember(good, records, topic_id, began_ns)
        except (UnfitItemError, RefusedRowError) as error:
            if len(records) > 1:
                # One of them is to blame: alone it shows, and the others are not held up.
                buried = {id(record) for record, _ in bad}
                for record in records:
                    if id(record) in buried:
                        self._remember([], [record], topic_id, began_ns)
                    else:
                        self.take([record], topic_id)
                return
            reason = error if isinstance(error, UnfitItemError) else UnfitItemError("refused", str(error))
            self._bury([(records[0], reason)], began_ns)
            self._remember([], records, topic_id, began_ns)

    def _remember(
        self,
        good: Sequence[tuple[InRecord, Arrival]],
        records: Sequence[InRecord],
        topic_id: str | None,
        began_ns: int,
    ) -> None:
        arrivals = [arrival for _, arrival in good]
        digests = self._crops.put_all([arrival.views for arrival in arrivals])
        with metrics.TRANSACTION_SECONDS.time(), self.store.write() as connection:
            done = remember(connection, self._crops, self._index, arrivals, digests, most_alike=MOST_ALIKE)
            ignore_retracted(connection, done.new)
            if self._settings.label_declared:
                label_declared(connection, done.new)
            after = {(r.topic, r.partition): r.next_offset for r in records}
            save_offsets(connection, after, topic_id)
        metrics.LAG_SECONDS.on_answers(after)
        metrics.CONSUMED.inc(len(records))
        metrics.BATCH_MESSAGES.observe(len(records))
        metrics.REMEMBERED.inc(len(done.new))
        metrics.REPEATED.inc(done.known)
        metrics.BLOCKED.inc(done.blocked)
        metrics.ALIKE.inc(done.alike)
        metrics.DUPLICATES.inc(done.duplicates)
        for record, arrival in good:
            release = None if arrival.release is None else version_of(arrival.release)
            log.info(
                "unknown remembered"
                if arrival.id in done.new
                else "unknown was known, blocked, or one of many alike",
                **as_fields(record, item=arrival.id, release=release, trace=arrival.trace),
            )
            if self._spans is not None:
                span = self._spans.begin(record, arrival.trace, began_ns)
                span.end({"forgewatch.item": arrival.id, "forgewatch.new": arrival.id in done.new})

    def _bury(self, bad: Sequence[tuple[InRecord, Exception]], began_ns: int) -> None:
        if not bad:
            return
        letters = [dead_letter(record, STAGE, error, self._ingest) for record, error in bad]
        self._letters.commit(letters, {}, None)
        for record, error in bad:
            reason, trace = getattr(error, "reason", "unexpected"), of_headers(record.headers)
            metrics.DEAD_LETTERS.labels(reason).inc()
            log.warning(
                "message became a dead letter",
                reason=reason,
                error=printable(error),
                **as_fields(record, trace=trace),
            )
            if self._spans is not None:
                self._spans.begin(record, trace, began_ns).end({}, reason)

    def keep_house(self) -> None:
        """Now and then: take in other processes' writes, save the index, purge expired items."""
        if time.monotonic() - self._house_kept < _HOUSEKEEPING_INTERVAL_S:
            return
        metrics.PURGED.inc(self._retention.purge(self.store, self._crops))
        metrics.BEYOND.inc(purge_sources(self.store, self._crops))
        self._index = self._renewal.current(self._index)
        with self.store.read() as connection:
            self._index.catch_up(connection)
        if len(self._index) and not self._renewal.under_way:
            self._index.save(self._settings.index_path)
            metrics.SNAPSHOT_TIME.set_to_current_time()
        metrics.INDEXED.set(len(self._index))
        sweep(self.store, self._crops, islice(self._shards, _SHARDS_A_ROUND))
        self._house_kept = time.monotonic()


def arrival_of(record: InRecord) -> Arrival:
    """Return the item of one message of the unknowns topic. Raises UnfitItemError.

    Its features are of this process's version: of a message of another, or of an unknown one, they are
    computed here, over the crops that it carries.
    """
    try:
        message = decode(record.value or b"")
    except UnknownMessageError as error:
        raise UnfitItemError("no_message", str(error)) from error
    verdict, features = message.verdict, message.features
    if message.feature_version != FEATURE_VERSION and len(message.crops):
        try:
            features = features_of(message.crops)
        except ValueError as error:
            raise UnfitItemError("bad_features", str(error)) from error
    return check(
        Arrival(
            id=verdict.id,
            media_digest=verdict.item.digest,
            source=verdict.item.source,
            crops=message.crops,
            features=features,
            embedding=message.embedding,
            release=verdict.release,
            unknown_score=verdict.unknown_score,
            received_at=datetime.now(UTC),
            verdict=verdict.model_dump_json(),
            trace=of_headers(record.headers) or verdict.item.trace,
            picture=message.picture,
            picture_hashes=message.picture_hashes,
            declared=declaration_of(verdict),
        )
    )

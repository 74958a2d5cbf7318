"""The detector worker: media in, verdicts out; a batch and its offsets are one Kafka transaction."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import structlog
from kafka.errors import KafkaError

from detector import metrics
from detector.answers import Answers, count_committed, log_verdict
from detector.batch import (
    Batch,
    BatchAbandonedError,
    Judged,
    RequestFailedError,
    affordable,
    judge,
    open_batch,
)
from detector.challenger import Challenger, attach_comparison, in_thread
from detector.records import NO_RELEASE
from detector.release.artifact import Artifact
from detector.release.tensors import CROPS, ModelOutput, Request
from detector.scoring import answers_probe, score
from detector.second_look import LookBudget, run_second_pass, second_looks
from detector.serving.rollout import Route, Serving
from detector.serving.rollout_source import FIRST_PAUSE_S
from detector.serving.torchserve import OutlastedError, TorchServe, TorchServeUnavailableError
from detector.settings import DetectorSettings
from detector.unknowns import MAX_MESSAGE_BYTES
from detector.verdicts import JudgedItem
from ingest.kafka.sink import CommitError, RecordTooLargeError, TransactionalSink
from ingest.kafka.source import Source
from ingest.metrics import LAG_SECONDS
from ingest.process.health import Heartbeat
from ingest.records import InRecord
from ingest.sandbox.sandbox import Sandbox, SandboxUnavailableError
from ingest.settings import HEADER_ROOM_BYTES, IngestSettings
from ingest.tracing import Spans

# The wait for records where none are there; a request to stop is met after it.
_POLL_TIMEOUT_S = 0.1
# Between two polls while others work. A paused fetch is thrown away, so a quick batch has none.
_MEMBER_INTERVAL_S = 2.0
# While records wait and the oldest is older, none is scored by two releases.
_MOST_LAG_S = 10.0
_T = TypeVar("_T")

log = structlog.get_logger()


@dataclass(frozen=True)
class InFlightBatch:
    """A batch with its offsets, and the membership under which the broker accepts them.

    began_ns is when it was taken, Unix time in nanoseconds.
    """

    records: list[InRecord]
    batch: Batch
    route: Route
    group_metadata: Any
    began_ns: int

    def first(self, count: int) -> "InFlightBatch":
        """So many of the first records; of each partition the others are later ones."""
        return replace(self, records=self.records[:count], batch=self.batch[:count])

    def without(self, count: int) -> "InFlightBatch":
        return replace(self, records=self.records[count:], batch=self.batch[count:])


@dataclass(frozen=True)
class Worker:
    """The parts that one worker slot is made of."""

    source: Source
    sandbox: Sandbox
    torchserve: TorchServe
    serving: Serving
    sink: TransactionalSink
    ingest: IngestSettings
    settings: DetectorSettings
    stop: threading.Event
    heartbeat: Heartbeat
    spans: Spans | None = None
    budget: LookBudget = field(default_factory=LookBudget)
    # Set while no record waits: then a retraction may go on.
    idle: threading.Event = field(default_factory=threading.Event)

    @cached_property
    def challenger(self) -> Challenger:
        """Who scores shared items beside the champion."""
        parts = (self.sandbox, self.torchserve, self.serving, self.ingest, self.settings)
        return Challenger(*parts, self._unknown_bytes())

    def run(self) -> None:
        """Take, judge, commit, until told to stop.

        While a batch is scored the next one decodes and the one before is committed. A commit is only
        begun once the one before has held, so what follows a failed one was never sent. No item waits
        long for the others of its batch: how many are taken follows from how long the last ones took,
        and a batch that costs more than it may is cut; the rest of it is the next one.
        This thread alone has the consumer, and stays a member of its group while others judge and commit.
        """
        ahead: InFlightBatch | None = None
        rest: InFlightBatch | None = None
        most = 1
        committing: Future[None] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="commit") as committer:
            while not self.stop.is_set():
                self.serving.tick()
                self.heartbeat.beat(self._hindrance())
                if not LAG_SECONDS.seconds():  # others have what it could not commit
                    self.heartbeat.standing = None
                if self.serving.route is None:
                    self.stop.wait(_POLL_TIMEOUT_S)
                    continue
                began = time.monotonic()
                was_cut = rest is not None
                if was_cut:
                    self._stay_a_member()
                    taken = rest
                else:
                    taken, ahead = ahead, self._take(most, wait=ahead is None)
                (self.idle.clear if taken or ahead else self.idle.set)()
                self.serving.in_use = _releases(taken, ahead)
                try:
                    # As many as were asked for have come: more may wait.
                    waiting = was_cut or (ahead is not None and len(ahead.records) >= most)
                    count, judged = 0, list[Judged]()
                    if taken:
                        work = partial(self._judge, taken, waiting=waiting)
                        count, judged = self._as_member(in_thread(work, "judge"))
                    if committing is not None:
                        self._as_member(committing)
                        self.heartbeat.standing = None
                    rest = taken.without(count) if taken and count < len(taken.records) else None
                    committing = committer.submit(self._commit, taken.first(count), judged) if taken else None
                    if taken:
                        most = self._most_items((time.monotonic() - began) / count)
                except (BatchAbandonedError, CommitError, SandboxUnavailableError) as error:
                    if self.stop.is_set():
                        return
                    log.warning("batch not committed, doing it again", error=str(error))
                    self.heartbeat.standing = f"a batch was not committed: {error}"
                    if isinstance(error, CommitError):
                        self.stop.wait(FIRST_PAUSE_S)
                    if committing is not None:
                        wait([committing])
                    ahead, rest, committing = None, None, None
                    self._rewind()

    def _hindrance(self) -> str | None:
        if self.serving.route is None:
            return NO_RELEASE
        return None if self.source.is_member() else "the consumer group has not let this worker in yet"

    def _most_items(self, item_s: float) -> int:
        """How many items that take item_s seconds each make a batch."""
        fit = int(self.settings.max_batch_duration_s / max(item_s, 1e-6))
        return max(1, min(self.settings.max_batch_items, fit))

    def _take(self, most: int, *, wait: bool) -> InFlightBatch | None:
        records = self.source.poll(most, _POLL_TIMEOUT_S if wait else 0.0)
        if not records:
            return None
        began_ns = time.time_ns()
        assert self.serving.route is not None
        route = self.serving.route
        batch = open_batch(records, route, self.sandbox, self.ingest)
        return InFlightBatch(records, batch, route, self.source.group_metadata(), began_ns)

    def _judge(self, taken: InFlightBatch, *, waiting: bool) -> tuple[int, list[Judged]]:
        """Judge as many of the first items as a batch may cost; give their number, too."""
        began = time.monotonic()
        count = affordable(taken.batch, self.settings.max_batch_duration_s, self.heartbeat.beat)
        batch = taken.first(count).batch
        behind = waiting and (LAG_SECONDS.seconds() or 0.0) > _MOST_LAG_S
        beside = self.challenger.begin(batch, taken.route, waiting=waiting, behind=behind)
        again = partial(self._look_again, waiting=waiting)
        judged = judge(batch, self._score, self.settings, self._unknown_bytes(), self.heartbeat.beat, again)
        for item in judged:
            if isinstance(item.error, RequestFailedError):
                self.serving.blame(item.release, str(item.error))
        for place, comparison in self.challenger.end(beside, time.monotonic() - began).items():
            judged[place] = attach_comparison(judged[place], batch[place], comparison, taken.route)
        return count, judged

    def _unknown_bytes(self) -> int:
        return min(MAX_MESSAGE_BYTES, self.ingest.max_record_bytes - HEADER_ROOM_BYTES)

    def _look_again(
        self, artifact: Artifact, items: Sequence[JudgedItem], *, waiting: bool
    ) -> Sequence[JudgedItem]:
        """Add the results of second looks; TorchServe is asked once, and not waited for."""
        ask, most = partial(self._ask_again, artifact), self.settings.max_request_bytes
        looks = second_looks(artifact, ask, max_request_bytes=most)
        if not any(look.looks_at(item) for look in looks for item in items):
            return items
        seconds = self.budget.seconds(waiting=waiting)
        with metrics.SECOND_LOOK.time():
            look, beat = self.sandbox.submit, self.heartbeat.beat
            again = run_second_pass(items, looks, look, beat=beat, seconds=seconds)
        self.budget.charge()
        metrics.count_second_looks([look.adds for look in looks], [item.verdict for item in again])
        return again

    def _ask_again(self, artifact: Artifact, request: Request) -> ModelOutput:
        try:
            return self.torchserve.predict(artifact, request)
        except OutlastedError as error:
            if answers_probe(self.torchserve, artifact):
                self.serving.blame(artifact.version, str(error))
            raise

    def _score(self, artifact: Artifact, request: Request) -> ModelOutput:
        """Ask TorchServe until it answers. Raises BatchAbandonedError and RequestFailedError."""
        metrics.BATCH_CROPS.observe(len(request[CROPS]))
        self.heartbeat.beat(self.heartbeat.hindrance())  # what the request before ran into still holds

        def pause(error: TorchServeUnavailableError) -> None:
            metrics.MODEL_RETRIES.inc()
            self.challenger.excuse()
            why = {"release": artifact.version, "error": str(error)}
            log.warning("TorchServe does not answer, trying again", **why)
            self._wait(f"TorchServe does not answer: {error}")
            if self.serving.route and artifact.digest not in self.serving.route.releases:
                # A release that cannot be brought back must not stop what another one can score.
                raise BatchAbandonedError(f"release {artifact.version} scores no more") from error

        return score(self.torchserve, self.serving, artifact, request, pause)

    def _commit(self, taken: InFlightBatch, judged: Sequence[Judged]) -> None:
        offsets = self.source.offsets_after(taken.records)
        making = Answers(self.ingest, self.settings, self.spans)
        answers = making.of(judged, taken.began_ns)
        came = [LAG_SECONDS.came(item.record) for item in judged]
        while True:
            records = [record for answer in answers for record in answer.sent]
            try:
                self.sink.commit(records, offsets, taken.group_metadata)
            except RecordTooLargeError as error:
                answers = [making.shrink_to_fit(answer, error) for answer in answers]
            else:
                break
        count_committed([answer.judged for answer in answers], came)
        for answer in answers:
            log_verdict(answer.judged, answer.span)

    def _rewind(self) -> None:
        """Go back to the committed offsets, once the broker has decided them."""
        while not self.stop.is_set():
            try:
                self.sink.recover()
                self.source.rewind()
            except (CommitError, KafkaError) as error:
                # A broker that refuses connections, or does not answer: so long, too, as a killed neighbour's
                # transaction is open.
                if isinstance(error, KafkaError) and not error.retriable:
                    raise
                log.warning("the broker does not answer, trying again", error=str(error))
                self._stay_a_member()
                self._wait(f"the broker does not answer: {error}")
            else:
                self.source.resume()
                return

    def _as_member(self, work: "Future[_T]") -> _T:
        """Wait for another thread's work without losing the partitions, however long it takes."""
        while not wait([work], _MEMBER_INTERVAL_S).done:
            self._stay_a_member()
            if self.stop.is_set():
                raise BatchAbandonedError("told to stop")
        self.source.resume()
        return work.result()

    def _stay_a_member(self) -> None:
        """Poll and take nothing: a member that never polls is put out."""
        self.source.pause()
        self.source.poll(1, 0.0)
        self.serving.tick()

    def _wait(self, hindrance: str) -> None:
        self.heartbeat.beat(hindrance)
        if self.stop.wait(FIRST_PAUSE_S):
            raise BatchAbandonedError("told to stop")


def _releases(*batches: InFlightBatch | None) -> set[str]:
    """Digests of the releases that are to score these batches."""
    return {digest for taken in batches if taken for digest in taken.route.releases}

"""A release is retracted: its items are scored anew by the stable one, beside the stream and behind it.

A verdict's outcome, its correction and the offsets are one transaction: each has exactly one outcome,
whatever is killed.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

import structlog
from pydantic import ValidationError

from detector import metrics
from detector.answers import verdict_records
from detector.batch import BatchAbandonedError, Judged, judge, open_batch
from detector.reading import CLOCKS_APART_MS, WITHDRAWAL_TYPE, group_of
from detector.records import (
    RETRACTIONS,
    VERDICTS,
    Outcome,
    OutcomeKind,
    Retraction,
    Verdict,
    Withdrawal,
    signature_headers,
)
from detector.release.artifact import Artifact, version_of
from detector.scoring import leave, score
from detector.second_look import run_second_pass, second_looks
from detector.serving.rollout import Route, Serving
from detector.serving.torchserve import BrokenOffError, FailedError, TorchServe, TorchServeUnavailableError
from detector.settings import DetectorSettings
from detector.unknowns import MAX_MESSAGE_BYTES
from detector.verdicts import VERDICT_TYPE, JudgedItem, event_headers, source_of
from ingest.dead_letters import as_fields, printable
from ingest.kafka.sink import RecordTooLargeError, TransactionalSink
from ingest.kafka.source import ReplayRange, Source
from ingest.records import InRecord, OutRecord, Position
from ingest.reread import MediaReader
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import HEADER_ROOM_BYTES, IngestSettings


class ForgedVerdictError(Exception):
    """A record whose headers name the release that was taken back, and whose body does not bear it out."""


@dataclass(frozen=True)
class RetractedVerdict:
    """A verdict that is taken back, and the record that holds it."""

    record: InRecord
    verdict: Verdict


@dataclass(frozen=True)
class Correction:
    """The outcome of a listed verdict, and its messages: the outcome, and the correction."""

    listed: RetractedVerdict
    outcome: Outcome
    sent: tuple[OutRecord, ...]


def parse_retracted(record: InRecord, retraction: Retraction, media_topic: str) -> RetractedVerdict | None:
    """Return the verdict of the release that a record holds; None of any other. Raises ForgedVerdictError.

    A correction bears the header of the release that made it, so that it is listed only once that is taken
    back in its turn.
    """
    headers = dict(record.headers)
    wanted = source_of(retraction.release).encode(), VERDICT_TYPE.encode()
    if (headers.get("ce_source"), headers.get("ce_type")) != wanted:
        return None
    try:
        verdict = Verdict.model_validate_json(record.value or b"")
    except ValidationError as error:
        raise ForgedVerdictError(f"no verdict: {str(error).splitlines()[0]}") from error
    item = verdict.item
    if verdict.release != retraction.release:
        raise ForgedVerdictError(f"its body names the release {verdict.release}")
    if (item.topic, verdict.id) != (media_topic, f"{media_topic}-{item.partition}-{item.offset}"):
        raise ForgedVerdictError(f"its id is {verdict.id}, and its item lies elsewhere")
    if headers.get("ce_id") != verdict.id.encode():
        raise ForgedVerdictError(f"its body has the id {verdict.id}")
    return RetractedVerdict(record, verdict)


@dataclass(frozen=True)
class Corrections:
    """Makes the messages for a retraction's verdicts; key signs the outcomes, None: nothing does."""

    retraction: Retraction
    ingest: IngestSettings
    key: bytes | None

    def correct(self, listed: RetractedVerdict, judged: Judged | None) -> Correction:
        """Return the correction of a verdict whose media was judged anew; None: the media is gone."""
        before = listed.verdict
        if judged is None:
            return self.withdraw(listed, "the topic has the media no more")
        if judged.verdict is None:
            assert judged.error is not None
            return self.withdraw(listed, f"{judged.error.reason}: {printable(judged.error)}")
        if judged.verdict.item.digest != before.item.digest:
            return self.withdraw(listed, "other media lies in its place")
        # Scores are of each release's own scale, and are not compared.
        if (before.label, before.family) == (judged.verdict.label, judged.verdict.family):
            return self._correct(listed, "same", judged.verdict)
        after = judged.verdict.model_copy(update={"supersedes": before.release})
        sent = verdict_records(replace(judged, verdict=after), listed.record.key, judged.trace, self.ingest)
        return self._correct(listed, "corrected", after, *sent)

    def withdraw(self, listed: RetractedVerdict, reason: str) -> Correction:
        """Return the withdrawal of a verdict that cannot be scored anew, for a reason in one line."""
        before = listed.verdict
        withdrawal = Withdrawal(id=before.id, item=before.item, release=before.release, reason=reason)
        # Not the release's, of which the verdict is: source and id together name one event.
        source = f"/forgewatch/retractions/{self.retraction.number}"
        headers = event_headers(withdrawal, source, WITHDRAWAL_TYPE)
        headers.append(("ce_time", datetime.now(UTC).isoformat().encode()))
        data = withdrawal.model_dump_json().encode()
        sent = OutRecord(self.ingest.topic(VERDICTS), listed.record.key, data, tuple(headers))
        return self._correct(listed, "withdrawn", None, sent)

    def _correct(
        self, listed: RetractedVerdict, kind: OutcomeKind, after: Verdict | None, *sent: OutRecord
    ) -> Correction:
        before = listed.verdict
        outcome = Outcome(
            retraction=self.retraction.number,
            release=self.retraction.release,
            id=before.id,
            outcome=kind,
            before=before.label,
            after=None if after is None else after.label,
        )
        data = outcome.model_dump_json().encode()
        signature = signature_headers(self.key, data)
        record = OutRecord(self.ingest.topic(RETRACTIONS), before.id.encode(), data, signature)
        return Correction(listed, outcome, (*sent, record))


_LOOK_INTERVAL_S = 1.0
_RETRY_INTERVAL_S = 2.0
_POLL_TIMEOUT_S = 0.5
_FAREWELL_S = 5.0
# Between two transactions that only say how far it is, since no verdict in between was the release's.
_COMMIT_INTERVAL_S = 2.0

_MOST_ITEMS = 32
# So long a request of the stream waits at most for one of a retraction.
_BATCH_DURATION_S = 0.5
# While records wait, a retraction rests so many times as long as it worked: it takes a tenth.
_SHARE = 9
# A member of a group that does not poll for five minutes is put out.
_LONGEST_REST_S = 60.0

log = structlog.get_logger()


@dataclass
class _Progress:
    """How far one retraction is: its source, and what was committed last and when."""

    source: Source
    committed: dict[tuple[str, int], Position] = field(default_factory=dict)
    at_s: float = 0.0


class Retracting:
    """One worker's part in every retraction, in a thread of its own while it is entered."""

    def __init__(
        self,
        sandbox: Sandbox,
        torchserve: TorchServe,
        serving: Serving,
        ingest: IngestSettings,
        settings: DetectorSettings,
        transactional_id: str,
        idle: threading.Event,
        stop: threading.Event,
    ) -> None:
        """idle is set while the worker has no record to judge; transactional_id is of this thread alone."""
        self._sandbox, self._torchserve, self._serving = sandbox, torchserve, serving
        self._ingest, self._settings = ingest, settings
        self._transactional_id = transactional_id
        self._idle, self._stop = idle, stop
        self._most, self._rest_s = 1, 0.0
        self._thread = threading.Thread(target=self.run, name="retraction", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._idle.set()
        self._thread.join(_FAREWELL_S)

    def due(self) -> tuple[Retraction, ...]:
        """The retractions of this worker: it serves the restored release, and not the other."""
        rollout, route = self._serving.rollout, self._serving.route
        if rollout is None or route is None or route.stable.digest != rollout.stable:
            return ()
        return tuple(entry for entry in rollout.retractions if entry.release not in route.releases)

    def run(self) -> None:
        """Carry out due retractions until told to stop; a fault costs only a round, which is done again."""
        while not self._stop.is_set():
            if not self.due():
                self._stop.wait(_LOOK_INTERVAL_S)
                continue
            try:
                with (
                    TransactionalSink(self._ingest, self._transactional_id) as sink,
                    MediaReader(self._ingest) as media,
                    ExitStack() as sources,
                ):
                    self._retract(sink, media, sources)
            except Exception as error:  # nobody watches a thread: whatever it is, the next round tries again
                metrics.RETRACTION_FAILURES.inc()
                log.warning("verdicts not taken back, done again", error=f"{type(error).__name__}: {error}")
                self._stop.wait(_RETRY_INTERVAL_S)

    def _retract(self, sink: TransactionalSink, media: MediaReader, sources: ExitStack) -> None:
        under_way: dict[Retraction, _Progress] = {}
        while not self._stop.is_set() and (due := self.due()):
            for over in under_way.keys() - set(due):
                under_way.pop(over).source.close()
            for retraction in due:
                if retraction not in under_way:
                    since_ms = max(0, retraction.since_ms - CLOCKS_APART_MS)
                    past = ReplayRange(self._ingest.topic(VERDICTS), since_ms, metrics.RETRACTION_LOST)
                    source = Source(self._ingest, group_of(self._settings.group_id, retraction), past)
                    under_way[retraction] = _Progress(sources.enter_context(source))
                    release = version_of(retraction.release)
                    log.info("verdicts are taken back", release=release, number=retraction.number)
                self._round(retraction, under_way[retraction], sink, media)
            metrics.RETRACTION_BEHIND.set(sum(progress.source.lag() for progress in under_way.values()))
        metrics.RETRACTION_BEHIND.set(0)

    def _round(
        self, retraction: Retraction, progress: _Progress, sink: TransactionalSink, media: MediaReader
    ) -> None:
        """Read on, score the release's items anew, and commit both."""
        source = progress.source
        records = source.poll(self._most, _POLL_TIMEOUT_S)
        position, membership = source.position(), source.group_metadata()
        parsed = (self._parse_retracted(record, retraction) for record in records)
        verdicts = [verdict for verdict in parsed if verdict is not None]
        settled = self._judge_again(verdicts, retraction, media) if verdicts else []
        late = time.monotonic() > progress.at_s + _COMMIT_INTERVAL_S
        if settled or (late and position and position != progress.committed):
            self._commit(settled, retraction, sink, position, membership)
            progress.committed, progress.at_s = position, time.monotonic()

    def _parse_retracted(self, record: InRecord, retraction: Retraction) -> RetractedVerdict | None:
        try:
            return parse_retracted(record, retraction, self._ingest.media_topic)
        except ForgedVerdictError as error:
            metrics.RETRACTED.labels("forged").inc()
            log.warning("a verdict is not the release's that it names", error=str(error), **as_fields(record))
            return None

    def _judge_again(
        self, verdicts: Sequence[RetractedVerdict], retraction: Retraction, media: MediaReader
    ) -> list[Correction]:
        """Judge the media of these verdicts anew, once the stream leaves room for it."""
        self._idle.wait(self._rest_s)
        route = self._serving.route
        if retraction not in self.due() or route is None:
            raise BatchAbandonedError("the served release has changed")
        began = time.monotonic()
        again = dict(media.records(retracted.verdict.item for retracted in verdicts))
        batch = open_batch([*again.values()], Route(route.stable), self._sandbox, self._ingest)
        unknown_bytes = min(MAX_MESSAGE_BYTES, self._ingest.max_record_bytes - HEADER_ROOM_BYTES)
        ask = partial(score, self._torchserve, self._serving, pause=self._pause)
        judged = judge(batch, ask, self._settings, unknown_bytes, again=self._look_again)
        if (now := self._serving.route) is None or now.stable.digest != route.stable.digest:
            raise BatchAbandonedError("the stable release has changed")
        took_s = time.monotonic() - began
        self._most = max(1, min(_MOST_ITEMS, int(_BATCH_DURATION_S * len(verdicts) / max(took_s, 1e-6))))
        self._rest_s = min(_LONGEST_REST_S, _SHARE * took_s)
        anew = dict(zip(again, judged, strict=True))
        corrections = self._corrections(retraction)
        return [corrections.correct(retracted, anew.get(retracted.verdict.item)) for retracted in verdicts]

    def _corrections(self, retraction: Retraction) -> Corrections:
        return Corrections(retraction, self._ingest, self._settings.signing_key)

    def _pause(self, error: TorchServeUnavailableError) -> None:
        """Try again what may be an item's fault, and leave the rest to the next round."""
        if not isinstance(error, FailedError | BrokenOffError) or self._stop.wait(_RETRY_INTERVAL_S):
            leave(error)

    def _look_again(self, artifact: Artifact, items: Sequence[JudgedItem]) -> Sequence[JudgedItem]:
        ask = partial(self._torchserve.predict, artifact)
        looks = second_looks(artifact, ask, max_request_bytes=self._settings.max_request_bytes)
        return run_second_pass(items, looks, self._sandbox.submit)

    def _commit(
        self,
        settled: Sequence[Correction],
        retraction: Retraction,
        sink: TransactionalSink,
        position: dict[tuple[str, int], Position],
        membership: Any,
    ) -> None:
        while True:
            try:
                sink.commit([record for item in settled for record in item.sent], position, membership)
                break
            except RecordTooLargeError as error:
                (place,) = (n for n, item in enumerate(settled) if any(r is error.record for r in item.sent))
                if not settled[place].outcome.after:
                    raise
                why, settled = f"record_too_large: {error}", list(settled)
                settled[place] = self._corrections(retraction).withdraw(settled[place].listed, why)
        for item in settled:
            metrics.RETRACTED.labels(item.outcome.outcome).inc()

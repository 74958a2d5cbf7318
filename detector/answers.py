"""The messages for judged records, and their metrics, logs and spans once those are committed.

Verdicts, messages to the memory, comparisons and dead letters are sent; counts, a line of the log and a span
are told.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from detector import metrics
from detector.batch import Judged, UnscorableError
from detector.records import COMPARISONS, UNKNOWNS, VERDICTS, signature_headers
from detector.release.artifact import version_of
from detector.settings import DetectorSettings
from detector.verdicts import verdict_headers
from ingest.dead_letters import as_fields, dead_letter, printable
from ingest.kafka.sink import CommitError, RecordTooLargeError
from ingest.records import OutRecord
from ingest.settings import IngestSettings
from ingest.trace_context import TraceContext
from ingest.tracing import Span, Spans

log = structlog.get_logger()


@dataclass(frozen=True)
class Answer:
    """The messages for one record, and the span that ends once they are committed."""

    judged: Judged
    span: Span | None
    sent: list[OutRecord]


@dataclass(frozen=True)
class Answers:
    """Makes answers, and smaller ones."""

    ingest: IngestSettings
    settings: DetectorSettings
    spans: Spans | None

    def of(self, judged: Sequence[Judged], began_ns: int) -> list[Answer]:
        """Answer records that were taken at began_ns, Unix time in nanoseconds."""
        begin = self.spans.begin if self.spans else lambda *_: None
        return [self._answer(item, begin(item.record, item.trace, began_ns)) for item in judged]

    def shrink_to_fit(self, answer: Answer, error: RecordTooLargeError) -> Answer:
        """Put a dead letter, which always fits, in place of an item's answer that is too large.

        A comparison that is too large is left out: it costs no answer. Raises CommitError where a topic is
        narrower than it must be, so that it takes no dead letter.
        """
        judged = answer.judged
        if not any(record is error.record for record in answer.sent):
            return answer
        if error.record.topic == self.ingest.topic(COMPARISONS):
            return self._answer(replace(judged, comparison=None), answer.span)
        if judged.verdict is None:
            raise CommitError(f"{error}: raise max.message.bytes of {error.record.topic}") from error
        reason = UnscorableError("record_too_large", error)
        reason.claims = judged.verdict.provenance.claims
        failed = replace(judged, verdict=None, unknown=None, error=reason, stage="commit", comparison=None)
        return self._answer(failed, answer.span)

    def _answer(self, judged: Judged, span: Span | None) -> Answer:
        records: list[OutRecord] = []
        if judged.comparison is not None:
            value, key = judged.comparison.model_dump_json().encode(), self.settings.signing_key
            topic, name = self.ingest.topic(COMPARISONS), judged.comparison.id.encode()
            records.append(OutRecord(topic, name, value, signature_headers(key, value)))
        if judged.verdict is None:
            assert judged.error is not None
            records.append(dead_letter(judged.record, judged.stage, judged.error, self.ingest))
        else:
            trace = judged.trace if span is None else span.context
            records += verdict_records(judged, judged.record.key, trace, self.ingest)
        return Answer(judged, span, records)


def verdict_records(
    judged: Judged, key: bytes | None, trace: TraceContext | None, ingest: IngestSettings
) -> list[OutRecord]:
    """Return the record of a verdict, under its item's key, and its message to the memory, if any."""
    verdict = judged.verdict
    assert verdict is not None
    headers, data = tuple(verdict_headers(verdict, trace)), verdict.model_dump_json().encode()
    records = [OutRecord(ingest.topic(VERDICTS), key, data, headers)]
    if judged.unknown is not None:
        onwards = tuple(trace.headers()) if trace else ()
        records.append(OutRecord(ingest.topic(UNKNOWNS), verdict.id.encode(), judged.unknown, onwards))
    return records


def count_committed(judged: Sequence[Judged], came: Sequence[float]) -> None:
    """Count a batch whose transaction was committed, at that moment; came: when each item did, Unix time."""
    now_s = time.time()
    metrics.BATCH_ITEMS.observe(len(judged))
    metrics.CONSUMED.inc(len(judged))
    for result, came_s in zip(judged, came, strict=True):
        metrics.END_TO_END.observe(max(0.0, now_s - came_s))
        if result.comparison is not None:
            metrics.SHARED.labels("failed" if result.comparison.challenger.error else "compared").inc()
        verdict = result.verdict
        if verdict is None:
            assert result.error is not None
            metrics.DEAD_LETTERS.labels(result.stage, result.error.reason).inc()
            continue
        release = version_of(verdict.release)
        metrics.VERDICTS.labels(verdict.label, release).inc()
        if verdict.label == "fake" and verdict.family is not None:
            metrics.FAKES.labels(verdict.family, release).inc()
        metrics.count_provenance(verdict.provenance, verdict.item.source)
        if verdict.segments:
            metrics.TOLD_VIDEOS.labels(verdict.label).inc()
        metrics.ENERGY.labels(release).observe(verdict.energy)
        metrics.UNKNOWN_SCORE.labels(release).observe(verdict.unknown_score)


def log_verdict(judged: Judged, span: Span | None) -> None:
    """Log a dead letter, and a verdict only at the level debug: there is one for each item of the stream."""
    verdict, record, trace = judged.verdict, judged.record, judged.trace
    if verdict is None:
        assert judged.error is not None
        reason = judged.error.reason
        where = as_fields(record, release=judged.release, trace=trace)
        error = printable(judged.error)
        log.warning("item became a dead letter", stage=judged.stage, reason=reason, error=error, **where)
        if span is not None:
            span.end({"forgewatch.item": record.id, "forgewatch.stage": judged.stage}, reason)
        return
    if log.is_enabled_for(logging.DEBUG):
        facts = verdict.model_dump(include={"label", "family", "unknown_score"})
        log.debug("verdict", **facts, **as_fields(record, release=judged.release, trace=trace))
    if span is not None:
        facts = verdict.model_dump(include={"label", "family"}) | verdict.timings.model_dump()
        facts |= {"item": verdict.id, "release": judged.release}
        span.end({f"forgewatch.{name}": fact for name, fact in facts.items() if fact is not None})

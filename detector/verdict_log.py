"""What is told of items once their answers are committed: counts, a line of the log, a span."""

import logging
import time
from collections.abc import Sequence

import structlog

from detector import metrics
from detector.batch import Judged
from detector.release.artifact import version_of
from ingest.dead_letters import about, told
from ingest.tracing import Span

log = structlog.get_logger()


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
        log.warning(
            "item became a dead letter",
            stage=judged.stage,
            reason=reason,
            error=told(judged.error),
            **about(record, release=judged.release, trace=trace),
        )
        if span is not None:
            span.end({"forgewatch.item": record.id, "forgewatch.stage": judged.stage}, reason)
        return
    if log.is_enabled_for(logging.DEBUG):
        log.debug(
            "verdict",
            label=verdict.label,
            family=verdict.family,
            unknown_score=verdict.unknown_score,
            **about(record, release=judged.release, trace=trace),
        )
    if span is not None:
        attributes: dict[str, str | float] = {
            "forgewatch.item": verdict.id,
            "forgewatch.release": judged.release,
            "forgewatch.label": verdict.label,
            "forgewatch.decode_s": verdict.timings.decode_s,
            "forgewatch.model_s": verdict.timings.model_s,
        }
        span.end(attributes | ({} if verdict.family is None else {"forgewatch.family": verdict.family}))

"""What is told of an item once its answer is committed: a line of the log, and its span."""

import logging

import structlog

from detector.batch import Judged
from ingest.item_fields import about, told
from ingest.tracing import Span

log = structlog.get_logger()


def tell(judged: Judged, span: Span | None) -> None:
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

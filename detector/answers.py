"""What is sent for judged records: verdicts, messages to the memory, comparisons, dead letters."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from detector.batch import Judged, UnscorableError
from detector.comparison import comparison_record
from detector.records import COMPARISONS, UNKNOWNS, VERDICTS
from detector.settings import DetectorSettings
from detector.verdicts import verdict_headers
from ingest.dead_letters import dead_letter
from ingest.kafka.sink import CommitError, RecordTooLargeError
from ingest.records import OutRecord
from ingest.settings import IngestSettings
from ingest.trace_context import TraceContext
from ingest.tracing import Span, Spans


@dataclass(frozen=True)
class Answer:
    """What is sent for one record, and the span that ends once it was committed."""

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
        return [self._answer(result, self._span(result, began_ns)) for result in judged]

    def lessened(self, answer: Answer, error: RecordTooLargeError) -> Answer:
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
        failed = Judged.failed(judged.record, "commit", reason, judged.trace, judged.release)
        return self._answer(failed, answer.span)

    def _span(self, judged: Judged, began_ns: int) -> Span | None:
        return None if self.spans is None else self.spans.begin(judged.record, judged.trace, began_ns)

    def _answer(self, judged: Judged, span: Span | None) -> Answer:
        return Answer(judged, span, self._outputs(judged, judged.trace if span is None else span.context))

    def _outputs(self, judged: Judged, trace: TraceContext | None) -> list[OutRecord]:
        verdict = judged.verdict
        records: list[OutRecord] = []
        if judged.comparison is not None:
            records.append(comparison_record(judged.comparison, self.settings.signing_key, self.ingest))
        if verdict is None:
            assert judged.error is not None
            return [*records, dead_letter(judged.record, judged.stage, judged.error, self.ingest)]
        headers = tuple(verdict_headers(verdict, trace))
        data = verdict.model_dump_json().encode()
        records.append(OutRecord(self.ingest.topic(VERDICTS), judged.record.key, data, headers))
        if judged.unknown is not None:
            onwards = tuple(trace.headers()) if trace else ()
            records.append(
                OutRecord(self.ingest.topic(UNKNOWNS), verdict.id.encode(), judged.unknown, onwards)
            )
        return records

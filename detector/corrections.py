"""Verdicts of a release that was taken back: which are listed, and what is sent for each. Pure."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pydantic import ValidationError

from detector.answers import verdict_records
from detector.batch import Judged
from detector.reading import WITHDRAWAL_TYPE
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
from detector.verdicts import VERDICT_TYPE, event_headers, source_of
from ingest.dead_letters import printable
from ingest.records import InRecord, OutRecord
from ingest.settings import IngestSettings


class ForgedVerdictError(Exception):
    """A record whose headers name the release that was taken back, and whose body does not bear it out."""


@dataclass(frozen=True)
class RetractedVerdict:
    """A verdict that is taken back, and the record that holds it."""

    record: InRecord
    verdict: Verdict


@dataclass(frozen=True)
class Correction:
    """What became of a listed verdict, and all that is sent for it: the outcome, and what corrects it."""

    listed: RetractedVerdict
    outcome: Outcome
    sent: tuple[OutRecord, ...]


def parse_retracted(
    record: InRecord, retraction: Retraction, ingest: IngestSettings
) -> RetractedVerdict | None:
    """Return the verdict of the release that a record holds; None of any other. Raises ForgedVerdictError.

    A correction bears the header of the release that made it, so that it is listed only once that is taken
    back in its turn.
    """
    headers = dict(record.headers)
    if headers.get("ce_source") != source_of(retraction.release).encode():
        return None
    if headers.get("ce_type") != VERDICT_TYPE.encode():
        return None
    try:
        verdict = Verdict.model_validate_json(record.value or b"")
    except ValidationError as error:
        raise ForgedVerdictError(f"no verdict: {str(error).splitlines()[0]}") from error
    item = verdict.item
    if verdict.release != retraction.release:
        raise ForgedVerdictError(f"its body names the release {verdict.release}")
    if (
        verdict.id != f"{ingest.media_topic}-{item.partition}-{item.offset}"
        or item.topic != ingest.media_topic
    ):
        raise ForgedVerdictError(f"its id is {verdict.id}, and its item lies elsewhere")
    if headers.get("ce_id") != verdict.id.encode():
        raise ForgedVerdictError(f"its body has the id {verdict.id}")
    return RetractedVerdict(record, verdict)


@dataclass(frozen=True)
class Corrections:
    """Makes what is sent for a retraction's verdicts; key signs the outcomes, None: nothing does."""

    retraction: Retraction
    ingest: IngestSettings
    key: bytes | None

    def correct(self, listed: RetractedVerdict, judged: Judged | None) -> Correction:
        """Return what becomes of a verdict whose media was judged anew; None: its topic has that no more."""
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
        """Return what becomes of a verdict that cannot be scored anew, for a reason in one line."""
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
        self, listed: RetractedVerdict, what: OutcomeKind, after: Verdict | None, *sent: OutRecord
    ) -> Correction:
        before = listed.verdict
        outcome = Outcome(
            retraction=self.retraction.number,
            release=self.retraction.release,
            id=before.id,
            outcome=what,
            before=before.label,
            after=None if after is None else after.label,
        )
        data = outcome.model_dump_json().encode()
        record = OutRecord(
            self.ingest.topic(RETRACTIONS), before.id.encode(), data, signature_headers(self.key, data)
        )
        return Correction(listed, outcome, (*sent, record))

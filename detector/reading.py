"""Shared by readers of the verdicts topic: the parser of a record, and the group of a retraction."""

from collections.abc import Iterable

from detector.records import Retraction, Verdict, Withdrawal
from detector.release.artifact import version_of

# ce_type of a withdrawal.
WITHDRAWAL_TYPE = "io.forgewatch.withdrawal"
# Verdicts bear a worker's time and a retraction deploy's: topics are read from so much earlier on.
CLOCKS_APART_MS = 300_000


def parse_record(value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> Verdict | Withdrawal:
    """Return a verdict, which is a correction where it supersedes another, or a withdrawal.

    Raises pydantic.ValidationError.
    """
    kind = Withdrawal if ("ce_type", WITHDRAWAL_TYPE.encode()) in headers else Verdict
    return kind.model_validate_json(value or b"")


def group_of(group_id: str, retraction: Retraction) -> str:
    """Return the consumer group of a retraction. group_id is the detector's.

    It names the release, since a ledger that was restored from a backup gives a number twice.
    """
    return f"{group_id}-retraction-{retraction.number}-{version_of(retraction.release)}"

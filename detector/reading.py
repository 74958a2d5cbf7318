"""What a record of the verdicts topic holds, for every reader of it."""

from collections.abc import Iterable

from detector.records import Verdict, Withdrawal

WITHDRAWAL_TYPE = "io.forgewatch.withdrawal"
"""ce_type of a withdrawal."""


def parse_record(value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> Verdict | Withdrawal:
    """Return a verdict, which is a correction where it supersedes another, or a withdrawal.

    Raises pydantic.ValidationError.
    """
    kind = Withdrawal if ("ce_type", WITHDRAWAL_TYPE.encode()) in headers else Verdict
    return kind.model_validate_json(value or b"")

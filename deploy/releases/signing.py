"""Whose signatures are asked for, and until when they count."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from detector.release.signature import SignersError, read_signers

NOTICE = timedelta(days=30)
"""So long before the last key expires it is called out."""

OFF = "off: no signature is asked for (FORGEWATCH_DETECTOR_TRUSTED_SIGNERS is unset)"


def last_expiry(signers: Path) -> datetime:
    """When the last of the keys expires, UTC. Raises SignersError."""
    return max(cert.not_valid_after_utc for cert in read_signers(signers))


def said_of(signers: Path | None) -> str:
    """One line: off; or who may sign, and until when."""
    if signers is None:
        return OFF
    try:
        trusted = read_signers(signers)
    except SignersError as error:
        return f"on, and every release is refused: {error}"
    names = [f"{cert.subject.rfc4514_string()} until {cert.not_valid_after_utc:%Y-%m-%d}" for cert in trusted]
    last = max(cert.not_valid_after_utc for cert in trusted)
    hurry = "; NONE COUNTS SOON: see `forgewatch doctor`" if last < datetime.now(UTC) + NOTICE else ""
    return f"on: {', '.join(names)}{hurry}"

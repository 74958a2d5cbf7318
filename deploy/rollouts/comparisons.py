"""What a record of the comparisons topic says, believed only where it may be true of a rollout."""

import hmac
import re
from collections.abc import Collection, Sequence
from math import inf, isfinite

from pydantic import ValidationError

from deploy.rollout_records import Trial
from detector.records import MAX_COMPARISON_BYTES, SIGNATURE, Comparison, ReleaseVerdict, in_share, sign

_PLACE = re.compile("(.+)-(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,18})")
_AHEAD_S = 60.0
"""A clock may be ahead by so much."""


class InvalidComparisonError(Exception):
    """A record that says it is a comparison of this rollout, and cannot be. Fatal for the record."""


def parse_comparison(
    value: bytes,
    headers: Sequence[tuple[str, bytes]],
    at_s: float,
    trial: Trial,
    families: Collection[str],
    media_topic: str,
    keys: Sequence[bytes],
    now_s: float,
) -> Comparison | None:
    """Return a record's comparison; None of one that is of another rollout.

    families: all that both releases know. keys: the tokens of detectors; where there is one, a comparison is
    signed by one of them. Raises UnbelievableError.
    """
    if len(value) > MAX_COMPARISON_BYTES:
        raise InvalidComparisonError(
            f"it has {len(value):,} bytes, and a comparison {MAX_COMPARISON_BYTES:,} at most"
        )
    require_signed(value, headers, keys)
    try:
        comparison = Comparison.model_validate_json(value)
    except ValidationError as error:
        raise InvalidComparisonError(f"it is no comparison: {error.errors()[0]['msg']}") from error
    if (comparison.champion.release, comparison.challenger.release) != (trial.champion, trial.release):
        return None
    if at_s < trial.began.timestamp():
        return None
    if comparison.rollout != trial.number:
        raise InvalidComparisonError(f"it is of the rollout {comparison.rollout}, and not of {trial.number}")
    if at_s > now_s + _AHEAD_S:
        raise InvalidComparisonError("it is from the future")
    compares = comparison.left_out is None
    for verdict in (comparison.champion, comparison.challenger) if compares else ():
        _require_sayable(verdict, families)
    steps = [trial.plan.shares(step) for step in range(len(trial.plan.canary) + 1)]
    shared, answered = (max(shares) for shares in zip(*steps, strict=True))
    placed = _PLACE.fullmatch(comparison.id)
    if not placed or placed[1] != media_topic or not in_share(comparison.id, shared):
        raise InvalidComparisonError(f"{comparison.id[:100]!r} is no item that both releases score")
    if comparison.answered == "challenger" and not in_share(comparison.id, answered):
        raise InvalidComparisonError(f"{comparison.id!r} is no item that the challenger answers")
    return comparison


def require_signed(value: bytes, headers: Sequence[tuple[str, bytes]], keys: Sequence[bytes]) -> None:
    """Raise UnbelievableError unless one of the keys signed it; where there is none, nothing is asked for."""
    signature = dict(headers).get(SIGNATURE, b"")
    if keys and not any(hmac.compare_digest(sign(key, value), signature) for key in keys):
        raise InvalidComparisonError("it is not signed by a detector's token")


def _require_sayable(verdict: ReleaseVerdict, families: Collection[str]) -> None:
    """Raises UnbelievableError where no release says that."""
    if not 0 <= verdict.model_s < inf:
        raise InvalidComparisonError(f"no item takes {verdict.model_s} s")
    if verdict.error is not None:
        return
    scores = (verdict.fake_probability, verdict.energy, verdict.unknown_score)
    if verdict.label is None or any(score is None or not isfinite(score) for score in scores):
        raise InvalidComparisonError("a release that could score an item says a label and finite scores")
    if not 0 <= (verdict.fake_probability or 0) <= 1:
        raise InvalidComparisonError(f"{verdict.fake_probability} is no probability")
    if verdict.family is not None and verdict.family not in families:
        raise InvalidComparisonError(f"neither release knows a family {verdict.family[:100]!r}")

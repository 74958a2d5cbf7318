"""What a record of the comparisons topic says, believed only where it may be true of a rollout."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from deploy.rollout_records import Trial
from detector.comparison import SIGNATURE, sign
from detector.records import Comparison
from detector.serving.rollout import in_share

_AHEAD_S = 60.0
"""A clock may be ahead by so much."""


class UnbelievableError(Exception):
    """A record that says it is a comparison of this rollout, and cannot be. Fatal for the record."""


@dataclass(frozen=True)
class Written:
    """A comparison, and when it was written, Unix time in seconds."""

    comparison: Comparison
    at_s: float


def believed(
    value: bytes,
    headers: Sequence[tuple[str, bytes]],
    at_s: float,
    trial: Trial,
    media_topic: str,
    keys: Sequence[bytes],
    now_s: float,
) -> Comparison | None:
    """Return a record's comparison; None of one that is of another rollout.

    keys: the tokens of detectors; where there is one, a comparison is signed by one of them. Raises
    UnbelievableError.
    """
    if keys:
        signature = dict(headers).get(SIGNATURE, b"")
        if not any(hmac.compare_digest(sign(key, value), signature) for key in keys):
            raise UnbelievableError("it is not signed by a detector's token")
    try:
        comparison = Comparison.model_validate_json(value)
    except ValidationError as error:
        raise UnbelievableError(f"it is no comparison: {error.errors()[0]['msg']}") from error
    if (comparison.champion.release, comparison.challenger.release) != (trial.champion, trial.release):
        return None
    steps = [trial.plan.shares(step) for step in range(len(trial.plan.canary) + 1)]
    shared, answered = (max(shares) for shares in zip(*steps, strict=True))
    if comparison.id.rpartition("-")[0].rpartition("-")[0] != media_topic or not in_share(
        comparison.id, shared
    ):
        raise UnbelievableError(f"{comparison.id[:100]!r} is no item that both releases score")
    if comparison.answered == "challenger" and not in_share(comparison.id, answered):
        raise UnbelievableError(f"{comparison.id!r} is no item that the challenger answers")
    if at_s > now_s + _AHEAD_S:
        raise UnbelievableError("it is from the future")
    return comparison

"""The gate of a release: what it calls unknown, fake and real. It lives in the release's manifest."""

import math
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from detector.records import Label


class Term(BaseModel):
    """How one score enters the unknown score: weight * clip((score - median) / scale).

    median and scale are of the score over calibration items, each class weighing the same; scale is the
    84 % quantile minus the median, one standard deviation of a normal score.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    median: float
    scale: float = Field(gt=0)
    weight: float = Field(ge=0)


class GateParameters(BaseModel):
    """Everything between a network's outputs and a label.

    The unknown score is the sum over the terms, each of them a score by its name in
    `detector/model/scores.py`; higher means less familiar. Where the gate knows the item's
    surroundings (`detector/model/surroundings.py`), it is less the level around the item.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    terms: dict[str, Term]
    clip: float = Field(gt=0, description="a standardised score is cut at this many scales, both sides")
    unknown_threshold: float = Field(description="unknown above this unknown score")
    fake_threshold: float = Field(ge=0, le=1, description="fake above this fake probability")
    video_unknown_threshold: float | None = Field(
        None, description="of videos, no lower; None: the pictures', for too few real videos were held back"
    )
    surroundings: bool = Field(False, description="whether an item's nearest known items shift its bounds")

    @model_validator(mode="after")
    def _something_weighs(self) -> Self:
        if math.isclose(sum(term.weight for term in self.terms.values()), 0):
            raise ValueError("the gate's weights must not all be zero")
        return self

    @model_validator(mode="after")
    def _videos_are_not_unknown_sooner(self) -> Self:
        if self.unknown_above(video=True) < self.unknown_threshold:
            raise ValueError("the unknown threshold of videos is below that of pictures")
        return self

    def unknown_above(self, *, video: bool) -> float:
        """Return the unknown score above which a video, or else a picture, is unknown."""
        if video and self.video_unknown_threshold is not None:
            return self.video_unknown_threshold
        return self.unknown_threshold


def decide(
    unknown_score: float, fake_probability: float, gate: GateParameters, *, video: bool = False
) -> Label:
    """Return "unknown", else "fake", else "real"; a score equal to its threshold is below it.

    A video that would be unknown by the threshold of pictures is not called fake: what is that far from all
    that is known is told from its reals no better than from its forgeries.
    """
    fake = fake_probability > gate.fake_threshold
    if unknown_score > gate.unknown_above(video=video) or (fake and unknown_score > gate.unknown_threshold):
        return "unknown"
    return "fake" if fake else "real"

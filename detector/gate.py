"""The gate of a release: what it calls unknown, fake and real. It lives in the release's manifest."""

import math
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from detector.records import Label


class Standard(BaseModel):
    """How one score is brought to a common scale: z = (score - median) / scale.

    Both are of the score over calibration items, each class weighing the same; scale is the 84 %
    quantile minus the median, one standard deviation of a normal score.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    median: float
    scale: float = Field(gt=0)


class GateParameters(BaseModel):
    """Everything between a network's outputs and a label.

    The unknown score is the sum over energy, pseudo, novelty, embedding_novelty and trace_novelty of
    weight * clip(z, -clip, clip); higher means less familiar. The weights follow that order.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    temperature: float = Field(1.0, gt=0, description="of the energy")
    energy: Standard
    pseudo: Standard
    novelty: Standard
    embedding_novelty: Standard
    trace_novelty: Standard
    clip: float = Field(gt=0, description="a standardised score is cut at this many scales, both sides")
    weights: tuple[float, float, float, float, float] = (1.0, 1.0, 2.0, 2.0, 3.0)
    unknown_threshold: float = Field(description="unknown above this unknown score")
    fake_threshold: float = Field(ge=0, le=1, description="fake above this fake probability")

    @model_validator(mode="after")
    def _weights_are_not_all_zero(self) -> Self:
        if min(self.weights) < 0 or math.isclose(sum(self.weights), 0):
            raise ValueError("the gate's weights must not be negative, and not all zero")
        return self


def decide(unknown_score: float, fake_probability: float, gate: GateParameters) -> Label:
    """Return "unknown", else "fake", else "real"; a score equal to its threshold is below it."""
    if unknown_score > gate.unknown_threshold:
        return "unknown"
    return "fake" if fake_probability > gate.fake_threshold else "real"

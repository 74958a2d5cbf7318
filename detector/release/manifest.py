"""A release's manifest: its fields, and the one format that is written and read."""

import json
import math
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from detector.records import Label
from detector.release.architecture import Architecture
from detector.release.contract import Contract
from detector.release.map_contract import MapContract
from detector.release.scan_contract import ScanContract
from detector.release.tensors import ROWS


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
    surroundings (`detector/model/graph.py`), it is less the level around the item.
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


FORMAT = 7
"""Raise it when an older reader would misread the new one: other numbers are refused."""


class ArtifactError(Exception):
    """The folder is no artifact that can be served. Fatal: fetch or make it again."""


class UnknownFormatError(ArtifactError):
    """The manifest is of a format that this version does not read."""


class DamagedArtifactError(ArtifactError):
    """A file is missing, or its bytes are not those of the manifest."""


class ReferenceEntry(BaseModel):
    """Who a row of reference.safetensors is."""

    model_config = ConfigDict(frozen=True)

    exemplar: str
    family: str


class Manifest(BaseModel):
    """All that belongs to a model, so that it swaps and rolls back with the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal[7] = 7
    classes: tuple[str, ...] = Field(min_length=2, description="by logit; the first is real")
    architecture: Architecture
    contract: Contract = Field(description="what the model takes and gives")
    feature_version: str | None = Field(description="of the forensic features; None for a network without")
    gate: GateParameters
    reference: tuple[ReferenceEntry, ...] = Field(description="by row of reference.safetensors")
    parent: str | None = Field(description="digest of the release that it was trained from")
    calibration: dict[str, float] = Field(description="how good the gate measured, out of fold")
    export_differences: dict[str, float] = Field(
        description="worst |onnx - torch| / (1 + |torch|) measured of each output"
    )
    localizer: MapContract | None = Field(
        None, description="what says where a picture is forged; None for a release without"
    )
    scanner: ScanContract | None = Field(
        None, description="what says when a video is forged; None for a release without"
    )
    files: dict[str, str] = Field({}, description="SHA-256 by file name; all but the manifest")

    @model_validator(mode="after")
    def _logits_are_of_the_classes(self) -> Self:
        logits = next(spec for spec in self.contract.outputs if spec.name == "logits")
        if logits.shape != (ROWS, len(self.classes)):
            raise ValueError(f"{logits.shape} are no logits of {len(self.classes)} classes")
        return self


def read_manifest(data: bytes) -> Manifest:
    """Parse a manifest's bytes.

    Raises UnknownFormatError for another format than today's, and DamagedArtifactError for anything that is
    no manifest.
    """
    try:
        number = json.loads(data)["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedArtifactError(f"not a manifest: {error!r}") from error
    if number != FORMAT:
        older = isinstance(number, int) and number < FORMAT
        raise UnknownFormatError(
            f"the manifest's format is {number!r}, this version reads {FORMAT}: "
            + ("make the release anew, by an update" if older else "upgrade what reads it")
        )
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        raise DamagedArtifactError(f"not a manifest: {error}") from error

"""A release's manifest: its fields, and the one format that is written and read."""

import json
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from detector.release.architecture import Architecture
from detector.release.contract import Contract
from detector.release.gate import GateParameters
from detector.release.graph_contract import ROWS
from detector.release.map_contract import MapContract
from detector.release.scan_contract import ScanContract

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

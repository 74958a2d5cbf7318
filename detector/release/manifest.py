"""A release's manifest: its fields, and the older formats that are still read."""

import json
from collections.abc import Callable
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from detector.release.architecture import Architecture
from detector.release.contract import ROWS, Contract, TensorSpec, crops_and_pooling
from detector.release.gate import GateParameters
from detector.release.map_contract import MapContract
from detector.release.scan_contract import ScanContract
from ingest.records import CropPlan

FORMAT = 7
"""The newest format. Raise it when an older reader would misread the new one."""


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
        logits = next(one for one in self.contract.outputs if one.name == "logits")
        if logits.shape != (ROWS, len(self.classes)):
            raise ValueError(f"{logits.shape} are no logits of {len(self.classes)} classes")
        return self


def written(manifest: Manifest) -> bytes:
    """Return a manifest's bytes, in a format that older versions read too where it says all."""
    if manifest.gate.video_unknown_threshold is not None:
        return manifest.model_dump_json(indent=1).encode()
    fields = manifest.model_dump(mode="json", exclude={"gate": {"video_unknown_threshold"}}) | {"format": 6}
    if manifest.localizer is None and manifest.scanner is None:
        del fields["localizer"], fields["scanner"]
        fields["format"] = 5
    return json.dumps(fields, indent=1, ensure_ascii=False).encode()


def read_manifest(data: bytes) -> Manifest:
    """Parse a manifest's bytes, lifting an older format to today's.

    Raises UnknownFormatError for a format that is newer, or too old, and DamagedArtifactError for
    anything that is no manifest.
    """
    try:
        fields = json.loads(data)
        number = fields["format"]
        while number in _LIFT:
            fields = _LIFT[number](fields)
            number = fields["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedArtifactError(f"not a manifest: {error!r}") from error
    if number != FORMAT:
        read = ", ".join(str(known) for known in (*_LIFT, FORMAT))
        raise UnknownFormatError(f"the manifest's format is {number!r}; this version reads {read}")
    try:
        return Manifest.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise DamagedArtifactError(f"not a manifest: {error}") from error


def _lift_1(fields: dict[str, Any]) -> dict[str, Any]:
    """Format 1 knew no embedding novelty: it weighs nothing."""
    gate = dict(fields["gate"])
    gate["embedding_novelty"] = {"median": 0.0, "scale": 1.0}
    gate["weights"] = [*gate["weights"], 0.0]
    return {**fields, "format": 2, "gate": gate}


def _lift_2(fields: dict[str, Any]) -> dict[str, Any]:
    """Format 2 knew no trace novelty: it weighs nothing."""
    gate = dict(fields["gate"])
    gate["trace_novelty"] = {"median": 0.0, "scale": 1.0}
    gate["weights"] = [*gate["weights"], 0.0]
    return {**fields, "format": 3, "gate": gate}


def _lift_3(fields: dict[str, Any]) -> dict[str, Any]:
    """Format 3 had a field of the gate for each of five scores, and no contract but the crop plan."""
    fields, gate = dict(fields), dict(fields["gate"])
    weights = zip(_SCORES_OF_FORMAT_3, gate.pop("weights"), strict=True)
    if gate.pop("temperature") != 1:
        raise ValueError("an energy at another temperature than 1 is no score of today's gates")
    gate["terms"] = {name: {**gate.pop(name), "weight": weight} for name, weight in weights}
    plan = CropPlan.model_validate(fields.pop("crop_plan"))
    contract = Contract(inputs=crops_and_pooling(plan), outputs=_outputs_of_format_3(len(fields["classes"])))
    return {**fields, "format": 4, "gate": gate, "contract": contract.model_dump(mode="json")}


def _lift_4(fields: dict[str, Any]) -> dict[str, Any]:
    """Format 4 named no mean and no deviation of a backbone's pixels: what they are without is said there."""
    return {**fields, "format": 5}


def _lift_5(fields: dict[str, Any]) -> dict[str, Any]:
    """Format 5 knew no localizer and no scanner: such a release has none."""
    return {**fields, "format": 6}


def _lift_6(fields: dict[str, Any]) -> dict[str, Any]:
    """Format 6 knew no threshold of videos' own: they have the pictures'."""
    return {**fields, "format": 7}


_SCORES_OF_FORMAT_3 = ("energy", "pseudo", "novelty", "embedding_novelty", "trace_novelty")


def _outputs_of_format_3(classes: int) -> tuple[TensorSpec, ...]:
    by_row: dict[str, tuple[int | str, ...]] = {
        "logits": (classes,),
        "pseudo_logit": (),
        "embedding": ("embedding_size",),
        "features": ("features_size",),
        "energy": (),
        "novelty": (),
        "unknown_score": (),
        "neighbour_index": ("neighbours",),
        "neighbour_distance": ("neighbours",),
    }
    return tuple(
        TensorSpec(name=name, dtype="int64" if name == "neighbour_index" else "float32", shape=(ROWS, *shape))
        for name, shape in by_row.items()
    )


# One function for each older format that is still read: it turns the JSON of a manifest of that
# format into JSON of the next.
_LIFT: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: _lift_1,
    2: _lift_2,
    3: _lift_3,
    4: _lift_4,
    5: _lift_5,
    6: _lift_6,
}

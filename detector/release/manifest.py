"""A release's manifest: its network's architecture, its gate and all else, and the one format of it.

No torch here: whoever only serves a release reads it too.
"""

import itertools
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from detector.records import Label
from detector.release.contract import Contract
from detector.release.crop_graphs import MapContract, ScanContract
from detector.release.experts import CarriedExpert
from detector.release.tensors import ROWS
from ingest.records import Declaration, Provenance

FEATURE_VERSION = "3"
"""Of the features: raise it with every change after which old rows mean something else."""

_WIDTHS = {
    "residuals": 42,
    "autocorrelation": 30,
    "spectrum": 37,
    "blocks": 127,
    "grid": 28,
    "local noise": 18,
    "edges": 18,
    "colour": 42,
    "texture": 320,
}
"""Of the groups of features, in their order."""
FEATURE_WIDTH = sum(_WIDTHS.values())
FORENSIC_WIDTH = FEATURE_WIDTH - _WIDTHS["texture"]
_TRACES = ("residuals", "spectrum", "local noise", "edges")
_ENDS = dict(zip(_WIDTHS, itertools.accumulate(_WIDTHS.values()), strict=True))
TRACE_COLUMNS: tuple[slice, ...] = tuple(slice(_ENDS[name] - _WIDTHS[name], _ENDS[name]) for name in _TRACES)
"""The columns of those groups that each see one kind of trace: a forgery that disturbs one group alone is
drowned in a distance over all columns."""

NO_BACKBONE = "none"

Channels = tuple[float, float, float]
"""Of red, green and blue, in levels of 0..255."""
_Positive = Annotated[float, Field(gt=0)]
Deviations = tuple[_Positive, _Positive, _Positive]


class Architecture(BaseModel, frozen=True):
    """Everything that a network's shape follows from, its classes aside. It is in the manifest."""

    backbone: str = Field("none", description='a timm model\'s name, or "none" for forensic features alone')
    crop_px: int = Field(128, description="side of a crop in pixels")
    forensic: bool = Field(
        True, description="residual front end and forensic branch; without, the backbone sees plain RGB"
    )
    frozen: bool = Field(
        False,
        description="whether the head reads the forensic features themselves, scaled and clipped: nothing but"
        " the head is learnt, in closed form",
    )
    width: int = Field(
        64, gt=0, description="of the backbone's part of the embedding, and of the forensic part"
    )
    head: Literal["linear", "cosine"] = Field(
        "linear", description="linear, or cosines times a learnt scale (CDDB's LinFC and CosFC)"
    )
    dropout: float = Field(0.1, ge=0, lt=1)
    mean: Channels | None = Field(
        None,
        description="levels of 0..255 that the backbone is shown as 0; None: 127.5 beside residuals, else "
        "ImageNet's",
    )
    deviation: Deviations | None = Field(
        None, description="levels that it is shown as 1; None: 127.5 beside residuals, else ImageNet's"
    )
    tasks: tuple[tuple[int, int], ...] | None = Field(
        None,
        description="of a network of task tokens (DyTox): the logits, from and to, that each task's"
        " classifier speaks for; any other network has none",
    )

    @model_validator(mode="after")
    def _reads_something(self) -> Self:
        if self.backbone == NO_BACKBONE and not self.forensic:
            raise ValueError("a network needs a backbone or forensic features")
        if self.frozen and (self.backbone != NO_BACKBONE or self.head != "linear"):
            raise ValueError("a network of frozen features has no backbone, and a linear head")
        return self


class Term(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How one score enters the unknown score: weight * clip((score - median) / scale).

    median and scale are of the score over calibration items, each class weighing the same; scale is the
    84 % quantile minus the median, one standard deviation of a normal score.
    """

    median: float
    scale: float = Field(gt=0)
    weight: float = Field(ge=0)


class SourceThresholds(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """The thresholds of one source's items, set on that source's own reals."""

    groups: int = Field(gt=0, description="of held-back reals that they were set on")
    unknown_threshold: float = Field(description="unknown above this unknown score")
    fake_threshold: float = Field(ge=0, le=1, description="fake above this fake probability")


class FirstSight(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """The threshold of sources of which the release knows no reals: their items are judged by fakeness.

    How far an item lies from all that is known says that its source is new, and hardly that it is forged.
    """

    fake_threshold: float = Field(
        ge=0, le=1, description="not real above this fake probability; set on sources that were left out"
    )
    sources: tuple[str, ...] = Field(description="whose reals are known: these are judged by the other ones")


class GateParameters(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Everything between a network's outputs and a label.

    The unknown score is the sum over the terms, each of them a score by its name in
    `detector/model/scores.py`; higher means less familiar.
    """

    terms: dict[str, Term]
    clip: float = Field(gt=0, description="a standardised score is cut at this many scales, both sides")
    unknown_threshold: float = Field(description="unknown above this unknown score")
    fake_threshold: float = Field(ge=0, le=1, description="fake above this fake probability")
    video_unknown_threshold: float | None = Field(
        None, description="of videos, no lower; None: the pictures', for too few real videos were held back"
    )
    surroundings: bool = Field(False, description="of older releases: the graph subtracts a further level")
    sources: dict[str, SourceThresholds] = Field(
        {}, description="by the item's source; a source that is not here is judged by the pooled thresholds"
    )

    first_sight: FirstSight | None = Field(
        None, description="None: all sources are judged alike, for too few were known to leave some out"
    )

    @model_validator(mode="after")
    def _something_weighs(self) -> Self:
        if math.isclose(sum(term.weight for term in self.terms.values()), 0):
            raise ValueError("the gate's weights must not all be zero")
        return self

    @model_validator(mode="after")
    def _videos_are_not_unknown_sooner(self) -> Self:
        if self.video_unknown_threshold is not None and self.video_unknown_threshold < self.unknown_threshold:
            raise ValueError("the unknown threshold of videos is below that of pictures")
        return self

    def unknown_above(self, *, video: bool = False, source: str = "") -> float:
        """Return the unknown score above which a video, or else a picture, of a source is unknown.

        Of videos it is no lower than the pooled one of videos. A source's name is that of `MediaItem.source`,
        and empty where it is not known.
        """
        own = self.sources.get(source)
        above = self.unknown_threshold if own is None else own.unknown_threshold
        if video and self.video_unknown_threshold is not None:
            return max(above, self.video_unknown_threshold)
        return above

    def fake_above(self, source: str) -> float:
        """Return the fake probability above which an item of a source is fake."""
        if self.is_first_sight(source) and self.first_sight is not None:
            return self.first_sight.fake_threshold
        own = self.sources.get(source)
        return self.fake_threshold if own is None else own.fake_threshold

    def is_first_sight(self, source: str) -> bool:
        """Whether no reals of a source are known, and its items are judged by fakeness."""
        return self.first_sight is not None and source not in self.first_sight.sources


def decide(
    unknown_score: float,
    fake_probability: float,
    gate: GateParameters,
    *,
    video: bool = False,
    source: str = "",
) -> Label:
    """Return "unknown", else "fake", else "real"; a score equal to its threshold is below it.

    By the thresholds of the item's source, where it has its own. At first sight of a source nothing is
    unknown that is not fake: novelty only says which of the two it is. A video that would be unknown by the
    threshold of pictures is not called fake: what is that far from all that is known is told from its reals
    no better than from its forgeries.
    """
    fake = fake_probability > gate.fake_above(source)
    if gate.is_first_sight(source) and not fake:
        return "real"
    if unknown_score > gate.unknown_above(video=video, source=source):
        return "unknown"
    if not fake:
        return "real"
    return "unknown" if unknown_score > gate.unknown_above(source=source) else "fake"


class ProvenancePolicy(BaseModel, frozen=True, extra="forbid"):
    """The weight of a file's statements about its origin: a trusted one always makes it fake, none real."""

    unsigned: Literal["fake", "evidence"] = Field(
        "fake",
        description="the label of an item that declares generation or an AI edit by metadata or an untrusted"
        " signer; evidence: the pixels' one",
    )


DECLARED_FAMILIES: Mapping[Declaration, str] = {
    "generated": "declared:generated",
    "edited_with_ai": "declared:edited",
}
"""The families of items that declare to be forged."""


def apply_policy(provenance: Provenance, policy: ProvenancePolicy, label: Label) -> dict[str, Any]:
    """Return the fields of a verdict that a file's statements change, of one with this label by pixels.

    No statement makes an item real: anyone can write it.
    """
    signed, unsigned = provenance.declares, provenance.metadata.declares
    claims = (
        (provenance.state == "valid_trusted", signed),
        (policy.unsigned == "fake" and provenance.state == "valid_untrusted", signed),
        (policy.unsigned == "fake", unsigned),
    )
    families = (DECLARED_FAMILIES.get(claim) for counts, claim in claims if counts and claim)
    declared = next(filter(None, families), None)
    if declared is None and (provenance.state != "invalid" or label != "real"):
        return {}
    changed: Label = "fake" if declared else "unknown"
    fields = {"label": changed, "pixel_label": None if label == changed else label}
    return fields | ({"family": declared, "family_probability": None} if declared else {})


FORMAT = 7
"""Raise it when an older reader would misread the new one: other numbers are refused."""


class ArtifactError(Exception):
    """The folder is no artifact that can be served. Fatal: fetch or make it again."""


class UnknownFormatError(ArtifactError):
    """The manifest is of a format that this version does not read."""


class DamagedArtifactError(ArtifactError):
    """A file is missing, or its bytes are not those of the manifest."""


class ReferenceEntry(BaseModel, frozen=True):
    """Who a row of reference.safetensors is."""

    exemplar: str
    family: str


class Manifest(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """All that belongs to a model, so that it swaps and rolls back with the weights."""

    format: Literal[7] = 7
    classes: tuple[str, ...] = Field(min_length=2, description="by logit; the first is real")
    architecture: Architecture
    contract: Contract = Field(description="the model's inputs and outputs")
    feature_version: str | None = Field(description="of the forensic features; None for a network without")
    gate: GateParameters
    reference: tuple[ReferenceEntry, ...] = Field(description="by row of reference.safetensors")
    parent: str | None = Field(description="digest of the release that it was trained from")
    calibration: dict[str, float] = Field(description="how good the gate measured, out of fold")
    export_differences: dict[str, float] = Field(
        description="worst |onnx - torch| / (1 + |torch|) measured of each output"
    )
    provenance: ProvenancePolicy = ProvenancePolicy()
    localizer: MapContract | None = Field(
        None, description="the graph that maps forged parts of a picture; None for a release without"
    )
    scanner: ScanContract | None = Field(
        None, description="the graph that finds forged segments of a video; None for a release without"
    )
    experts: tuple[CarriedExpert, ...] = Field(
        (), description="networks with a real/fake head of their own, inside of the detector's graph"
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
            + ("make the release anew, by an update" if older else "upgrade its reader")
        )
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        raise DamagedArtifactError(f"not a manifest: {error}") from error

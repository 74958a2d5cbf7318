"""A release as a folder of files under one digest: what it holds, how it is sealed, read and checked."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from detector.architecture import Architecture
from detector.gate import GateParameters
from ingest.durable import sync_tree
from ingest.records import CropPlan, MediaPlan

FORMAT = 3
"""The number that manifests are written with. Raise it when an older reader would misread the new one."""

MANIFEST, MODEL, WEIGHTS = "manifest.json", "detector.onnx", "weights.safetensors"
REFERENCE, PROBE = "reference.safetensors", "probe.safetensors"
EVALUATION, MODEL_CARD = "evaluation.json", "model_card.md"
EVALUATION_PAGE = "evaluation.md"
"""The evaluation for the eye; no artifact needs it."""

REQUIRED = (MODEL, WEIGHTS, PROBE, EVALUATION, MODEL_CARD)
"""What every artifact holds beside its manifest; reference.safetensors only where the network is forensic."""

FILES = frozenset({MANIFEST, MODEL, WEIGHTS, REFERENCE, PROBE, EVALUATION, EVALUATION_PAGE, MODEL_CARD})
"""Every file name that an artifact may hold. TorchServe puts the folder that it unpacks an archive into on
PYTHONPATH, before the standard library: a name that Python can import would run as code. None of these can.
"""


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

    format: Literal[3] = 3
    classes: tuple[str, ...] = Field(min_length=2, description="by logit; the first is real")
    architecture: Architecture
    crop_plan: CropPlan
    feature_version: str | None = Field(description="of the forensic features; None for a network without")
    gate: GateParameters
    reference: tuple[ReferenceEntry, ...] = Field(description="by row of reference.safetensors")
    parent: str | None = Field(description="digest of the release that it was trained from")
    calibration: dict[str, float] = Field(description="how good the gate measured, out of fold")
    export_differences: dict[str, float] = Field(
        description="worst |onnx - torch| / (1 + |torch|) measured of each output"
    )
    files: dict[str, str] = Field({}, description="SHA-256 by file name; all but the manifest")

    @property
    def media_plan(self) -> MediaPlan:
        """How media is to be decoded for this model."""
        return MediaPlan(crops=self.crop_plan)


@dataclass(frozen=True)
class Artifact:
    """A sealed folder. digest is the SHA-256 of the manifest's bytes, and so of every file."""

    folder: Path
    manifest: Manifest
    digest: str

    @property
    def version(self) -> str:
        """The digest's first twelve digits: the release's name in TorchServe, logs and metrics."""
        return version_of(self.digest)


def version_of(digest: str) -> str:
    """The short name of a release: the first twelve hexadecimal digits of its digest."""
    return digest[:12]


def seal(folder: Path, draft: Manifest) -> Artifact:
    """Write the manifest of everything that lies in folder, and sync it all to disk.

    draft's `files` is replaced. Raises DamagedArtifactError when a file that every artifact needs is
    missing, when one lies there that is not in FILES, or something other than a plain file.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    present = sorted(folder.iterdir())
    if odd := [path.name for path in present if path.is_symlink() or not path.is_file()]:
        raise DamagedArtifactError(f"{folder}: not plain files: {', '.join(odd)}")
    manifest = draft.model_copy(update={"files": {path.name: sha256_of(path) for path in present}})
    _check_names(folder, manifest)
    data = manifest.model_dump_json(indent=1).encode()
    (folder / MANIFEST).write_bytes(data)
    sync_tree(folder)
    return Artifact(folder, manifest, hashlib.sha256(data).hexdigest())


def load(folder: Path) -> Artifact:
    """Read a folder's manifest, and no other file. Raises ArtifactError."""
    try:
        data = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise DamagedArtifactError(f"{folder}: no manifest: {error.strerror}") from error
    manifest = read_manifest(data)
    _check_names(folder, manifest)
    return Artifact(folder, manifest, hashlib.sha256(data).hexdigest())


def verify(folder: Path, digest: str | None = None) -> Artifact:
    """Read a folder and hash each file that its manifest names.

    Files beside those are left alone (TorchServe unpacks its own among them). Raises
    DamagedArtifactError when a byte differs, or when `digest` is given and is not the manifest's.
    """
    artifact = load(folder)
    if digest is not None and artifact.digest != digest:
        raise DamagedArtifactError(f"{folder}: the manifest's digest is {artifact.digest}, not {digest}")
    for name, expected in artifact.manifest.files.items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise DamagedArtifactError(f"{folder}: {name} is missing, or no plain file")
        if (found := sha256_of(path)) != expected:
            raise DamagedArtifactError(f"{folder}: {name} has SHA-256 {found}, the manifest says {expected}")
    return artifact


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


# One function for each older format that is still read: it turns the JSON of a manifest of that
# format into JSON of the next.
_LIFT: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _lift_1, 2: _lift_2}


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_names(folder: Path, manifest: Manifest) -> None:
    needed = (*REQUIRED, REFERENCE) if manifest.architecture.forensic else REQUIRED
    if missing := [name for name in needed if name not in manifest.files]:
        raise DamagedArtifactError(f"{folder}: the artifact lacks {', '.join(missing)}")
    # The names become paths wherever the artifact is fetched to.
    if wrong := sorted(manifest.files.keys() - (FILES - {MANIFEST})):
        raise DamagedArtifactError(f"{folder}: no artifact has files of these names: {wrong}")

import json
from typing import Any

import pytest

from detector.release.artifact import MANIFEST, Artifact
from detector.release.contract import crops_and_pooling
from detector.release.gate import Term
from detector.release.manifest import DamagedArtifactError, UnknownFormatError, read_manifest, written
from ingest.records import CropPlan, MediaPlan

STANDARD = {"median": 0.5, "scale": 2.0}

FORMAT_1: dict[str, Any] = {
    "format": 1,
    "classes": ["real", "blend"],
    "architecture": {
        "backbone": "none",
        "crop_px": 64,
        "forensic": True,
        "width": 64,
        "head": "linear",
        "dropout": 0.1,
    },
    "crop_plan": {
        "crop_px": 64,
        "patches": 4,
        "stride_px": None,
        "face_patches": 2,
        "faces": 1,
        "frames": 3,
    },
    "feature_version": "2",
    "gate": {
        "temperature": 1.0,
        "energy": STANDARD,
        "pseudo": STANDARD,
        "novelty": {"median": 3.0, "scale": 4.0},
        "clip": 6.0,
        "weights": [1.0, 1.0, 2.0],
        "unknown_threshold": 7.5,
        "fake_threshold": 0.25,
    },
    "reference": [{"exemplar": "a", "family": "real"}],
    "parent": None,
    "calibration": {"reals_unknown": 0.04},
    "export_differences": {"logits": 1e-6},
    "files": {"detector.onnx": "0" * 64},
}
FORMAT_2 = FORMAT_1 | {
    "format": 2,
    "gate": FORMAT_1["gate"] | {"embedding_novelty": STANDARD, "weights": [1.0, 1.0, 2.0, 2.0]},
}
FORMAT_3 = FORMAT_2 | {
    "format": 3,
    "gate": FORMAT_2["gate"] | {"trace_novelty": STANDARD, "weights": [1.0, 1.0, 2.0, 2.0, 3.0]},
}


@pytest.mark.parametrize(
    ("fields", "weights"),
    [(FORMAT_1, [1, 1, 2, 0, 0]), (FORMAT_2, [1, 1, 2, 2, 0]), (FORMAT_3, [1, 1, 2, 2, 3])],
)
def test_a_manifest_of_an_older_format_is_read_with_its_gate_as_terms(
    fields: dict[str, Any], weights: list[float]
) -> None:
    manifest = read_manifest(json.dumps(fields).encode())
    assert manifest.format == 7
    assert manifest.localizer is None
    gate = manifest.gate
    assert list(gate.terms) == ["energy", "pseudo", "novelty", "embedding_novelty", "trace_novelty"]
    assert [term.weight for term in gate.terms.values()] == weights
    assert gate.terms["novelty"] == Term(median=3, scale=4, weight=2)
    assert (gate.clip, gate.unknown_threshold, gate.fake_threshold) == (6, 7.5, 0.25)
    assert read_manifest(manifest.model_dump_json().encode()) == manifest


def test_an_older_model_takes_crops_and_pooling_and_says_what_models_said_then() -> None:
    contract = read_manifest(json.dumps(FORMAT_3).encode()).contract
    plan = CropPlan(crop_px=64, patches=4, face_patches=2, faces=1, frames=3)
    assert contract.inputs == crops_and_pooling(plan)
    assert contract.media_plan == MediaPlan(crops=plan)
    assert [str(one.shape) for one in contract.outputs if one.name == "logits"] == ["('rows', 2)"]
    # As the graphs of that time name them, in ONNX and in the probe.
    assert [one.name for one in contract.outputs] == [
        "logits",
        "pseudo_logit",
        "embedding",
        "features",
        "energy",
        "novelty",
        "unknown_score",
        "neighbour_index",
        "neighbour_distance",
    ]


def test_a_release_of_format_5_has_no_localizer_and_no_scanner(untrained_artifact: Artifact) -> None:
    fields = untrained_artifact.manifest.model_dump(mode="json") | {"format": 5}
    del fields["localizer"], fields["scanner"]
    assert read_manifest(json.dumps(fields).encode()) == untrained_artifact.manifest


def test_a_release_of_one_graph_is_written_as_older_versions_read_it(
    untrained_artifact: Artifact, localized_artifact: Artifact, scanned_artifact: Artifact
) -> None:
    releases = (untrained_artifact, localized_artifact, scanned_artifact)
    for artifact, number in zip(releases, (5, 6, 6), strict=True):
        fields = json.loads((artifact.folder / MANIFEST).read_bytes())
        assert fields["format"] == number
        assert ("localizer" in fields, "scanner" in fields) == (number == 6,) * 2
        assert read_manifest(written(artifact.manifest)) == artifact.manifest
    gate = scanned_artifact.manifest.gate.model_copy(update={"video_unknown_threshold": 12.5})
    newest = scanned_artifact.manifest.model_copy(update={"gate": gate})
    assert json.loads(written(newest))["format"] == 7
    assert read_manifest(written(newest)) == newest
    alone = scanned_artifact.manifest.model_copy(update={"localizer": None})
    assert read_manifest(written(alone)) == alone


@pytest.mark.parametrize(
    "wrong",
    [
        {"crop_px": 60},
        {"crop_px": 24},
        {"frames": 97},
        {"frames": 0},
        {"threshold": 0},
        {"reals": 0},
        {"n": 1},
    ],
)
def test_a_scanner_that_cannot_be_is_refused(untrained_artifact: Artifact, wrong: dict[str, Any]) -> None:
    declared = {"crop_px": 64, "threshold": 0.3, "reals_told": 0, "reals": 9, "export_difference": 0}
    fields = untrained_artifact.manifest.model_dump(mode="json")
    held = read_manifest(json.dumps(fields | {"scanner": declared}).encode()).scanner
    assert held is not None
    assert (held.frames, held.outputs[0].shape) == (96, ("rows",))
    with pytest.raises(DamagedArtifactError):
        read_manifest(json.dumps(fields | {"scanner": declared | wrong}).encode())


@pytest.mark.parametrize(
    "wrong", [{"crop_px": 60}, {"cell_px": 16}, {"threshold": 0}, {"reals": 0}, {"more": 1}]
)
def test_a_localizer_that_cannot_be_is_refused(untrained_artifact: Artifact, wrong: dict[str, Any]) -> None:
    declared = {"crop_px": 64, "threshold": 0.3, "reals_marked": 0, "reals": 9, "export_difference": 0}
    fields = untrained_artifact.manifest.model_dump(mode="json")
    held = read_manifest(json.dumps(fields | {"localizer": declared}).encode()).localizer
    assert held is not None
    assert held.outputs[0].shape == ("rows", 8, 8)
    with pytest.raises(DamagedArtifactError):
        read_manifest(json.dumps(fields | {"localizer": declared | wrong}).encode())


@pytest.mark.parametrize("number", [0, 8, "7", None])
def test_an_unknown_format_is_refused_by_its_number(untrained_artifact: Artifact, number: object) -> None:
    fields = untrained_artifact.manifest.model_dump(mode="json") | {"format": number}
    with pytest.raises(
        UnknownFormatError, match=f"format is {number!r}; this version reads 1, 2, 3, 4, 5, 6, 7"
    ):
        read_manifest(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        *(json.dumps({"format": number}).encode() for number in (1, 2, 3, 4, 5, 6, 7, [7])),
        json.dumps(FORMAT_3 | {"gate": FORMAT_3["gate"] | {"weights": [1.0]}}).encode(),
        json.dumps(FORMAT_3 | {"gate": FORMAT_3["gate"] | {"temperature": 2.0}}).encode(),
        json.dumps(FORMAT_3 | {"crop_plan": {"crop_px": "wide"}}).encode(),
        json.dumps(FORMAT_3 | {"crop_plan": None}).encode(),
        json.dumps(FORMAT_3 | {"more": 1}).encode(),
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedArtifactError):
        read_manifest(data)


def test_logits_that_are_not_of_the_classes_are_refused(untrained_artifact: Artifact) -> None:
    fields = untrained_artifact.manifest.model_dump(mode="json") | {"classes": ["real", "blend"]}
    with pytest.raises(DamagedArtifactError, match="no logits of 2 classes"):
        read_manifest(json.dumps(fields).encode())

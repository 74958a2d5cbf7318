import json
from typing import Any

import pytest

from detector.release.artifact import MANIFEST, Artifact
from detector.release.manifest import FORMAT, DamagedArtifactError, UnknownFormatError, read_manifest


def test_a_release_is_written_in_one_format_whatever_it_has(
    untrained_artifact: Artifact, localized_artifact: Artifact, scanned_artifact: Artifact
) -> None:
    for artifact in (untrained_artifact, localized_artifact, scanned_artifact):
        data = (artifact.folder / MANIFEST).read_bytes()
        assert json.loads(data)["format"] == FORMAT
        assert read_manifest(data) == artifact.manifest
    gate = scanned_artifact.manifest.gate.model_copy(update={"video_unknown_threshold": 12.5})
    other = scanned_artifact.manifest.model_copy(update={"gate": gate, "localizer": None})
    assert read_manifest(other.model_dump_json().encode()) == other


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


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        *((number, "make the release anew") for number in range(FORMAT)),
        (FORMAT + 1, "upgrade"),
        ("7", "upgrade"),
    ],
)
def test_another_format_is_refused_by_its_number_in_one_line(
    untrained_artifact: Artifact, number: object, advice: str
) -> None:
    fields = untrained_artifact.manifest.model_dump(mode="json") | {"format": number}
    with pytest.raises(UnknownFormatError) as refused:
        read_manifest(json.dumps(fields).encode())
    assert f"format is {number!r}, this version reads {FORMAT}: {advice}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", json.dumps({"format": FORMAT}).encode()])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedArtifactError):
        read_manifest(data)


def test_logits_that_are_not_of_the_classes_are_refused(untrained_artifact: Artifact) -> None:
    fields = untrained_artifact.manifest.model_dump(mode="json") | {"classes": ["real", "blend"]}
    with pytest.raises(DamagedArtifactError, match="no logits of 2 classes"):
        read_manifest(json.dumps(fields).encode())

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from detector.artifact import (
    EVALUATION,
    MANIFEST,
    MODEL,
    Artifact,
    DamagedArtifactError,
    UnknownFormatError,
    load,
    read_manifest,
    seal,
    verify,
)
from detector.mar import mar_name, pack


@pytest.fixture
def copy(untrained_artifact: Artifact, tmp_path: Path) -> Artifact:
    folder = tmp_path / "copy"
    shutil.copytree(untrained_artifact.folder, folder)
    return load(folder)


def test_an_artifact_read_back_is_the_one_that_was_sealed(untrained_artifact: Artifact) -> None:
    assert verify(untrained_artifact.folder, untrained_artifact.digest) == untrained_artifact


def test_sealing_the_same_files_gives_the_same_digest(copy: Artifact, untrained_artifact: Artifact) -> None:
    assert seal(copy.folder, copy.manifest) == Artifact(copy.folder, copy.manifest, untrained_artifact.digest)


def test_one_changed_byte_is_found(copy: Artifact) -> None:
    model = bytearray((copy.folder / MODEL).read_bytes())
    model[len(model) // 2] ^= 1
    (copy.folder / MODEL).write_bytes(model)
    with pytest.raises(DamagedArtifactError, match=MODEL):
        verify(copy.folder)


def test_a_manifest_of_another_digest_is_refused(copy: Artifact) -> None:
    with pytest.raises(DamagedArtifactError, match="digest"):
        verify(copy.folder, "0" * 64)


def test_a_missing_file_is_found(copy: Artifact) -> None:
    (copy.folder / EVALUATION).unlink()
    with pytest.raises(DamagedArtifactError, match=EVALUATION):
        verify(copy.folder)
    with pytest.raises(DamagedArtifactError, match=EVALUATION):
        seal(copy.folder, copy.manifest)


def test_an_unknown_format_is_refused_by_its_number(copy: Artifact) -> None:
    fields = json.loads((copy.folder / MANIFEST).read_bytes())
    fields["format"] = 4
    with pytest.raises(UnknownFormatError, match="format is 4; this version reads 1"):
        read_manifest(json.dumps(fields).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format": 1}', b"\xff"])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedArtifactError):
        read_manifest(data)


def test_a_file_name_that_leaves_the_folder_is_refused(copy: Artifact) -> None:
    fields = json.loads((copy.folder / MANIFEST).read_bytes())
    fields["files"]["../../etc/passwd"] = "0" * 64
    (copy.folder / MANIFEST).write_text(json.dumps(fields))
    with pytest.raises(DamagedArtifactError, match="passwd"):
        load(copy.folder)


def test_an_archive_has_the_same_bytes_every_time(copy: Artifact, untrained_artifact: Artifact) -> None:
    stores = copy.folder.parent / "a", copy.folder.parent / "b"
    for store in stores:
        store.mkdir()
    first, second = pack(untrained_artifact, stores[0]), pack(copy, stores[1])
    assert first.name == second.name == mar_name(copy.digest)
    assert first.read_bytes() == second.read_bytes()


def test_an_archive_holds_the_artifact_and_a_file_with_one_class(
    untrained_artifact: Artifact, tmp_path: Path
) -> None:
    with zipfile.ZipFile(pack(untrained_artifact, tmp_path)) as archive:
        archive.extractall(tmp_path / "unpacked")
        described = json.loads(archive.read("MAR-INF/MANIFEST.json"))["model"]
        shim = archive.read(described["handler"]).decode()
    assert verify(tmp_path / "unpacked", untrained_artifact.digest).manifest == untrained_artifact.manifest
    assert described["modelVersion"] == untrained_artifact.version
    assert shim.count("class ") == 1


def test_a_manifest_of_the_format_before_is_read_and_knows_no_trace_novelty(copy: Artifact) -> None:
    fields = json.loads((copy.folder / MANIFEST).read_text())
    fields["format"] = 2
    del fields["gate"]["trace_novelty"]
    fields["gate"]["weights"] = [1.0, 1.0, 2.0, 2.0]
    assert read_manifest(json.dumps(fields).encode()).gate.weights == (1, 1, 2, 2, 0)
    fields["format"] = 1
    del fields["gate"]["embedding_novelty"]
    fields["gate"]["weights"] = [1.0, 1.0, 2.0]
    gate = read_manifest(json.dumps(fields).encode()).gate
    assert gate.weights == (1, 1, 2, 0, 0)

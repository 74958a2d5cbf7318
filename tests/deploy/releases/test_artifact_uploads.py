"""Uploads of one artifact by way of two servers that share a folder."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.releases.artifacts import ArtifactStore
from detector.release.artifact import MANIFEST, Artifact
from memory.crops import object_store
from memory.crops.object_store import ObjectStore


def put(store: ArtifactStore, artifact: Artifact) -> None:
    for name in (*artifact.manifest.files, MANIFEST):
        with store.upload(artifact.digest, name) as upload:
            upload.write((artifact.folder / name).read_bytes())
            upload.commit()


def test_an_artifact_that_is_completed_leaves_what_another_server_is_taking_in(
    tmp_path: Path, make_artifact: Callable[..., Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, copyfile = make_artifact(), shutil.copyfile
    store, again = (ArtifactStore(str(tmp_path / "store"), 2**26) for _ in range(2))
    completed: list[Path] = []

    def completed_meanwhile(path: Path, aside: Path) -> None:
        copyfile(path, aside)
        if not completed:
            completed.append(aside)
            put(again, artifact)
            assert aside.is_file()

    monkeypatch.setattr(object_store.shutil, "copyfile", completed_meanwhile)
    put(store, artifact)
    assert completed
    # Every byte is read anew.
    assert store.evidence(artifact.digest).digest == artifact.digest
    assert ObjectStore(str(tmp_path / "store")).names(f".incoming/{artifact.digest}") == []

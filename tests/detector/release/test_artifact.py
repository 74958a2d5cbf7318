import json
import pkgutil
import shutil
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from detector.release.artifact import (
    EVALUATION,
    FILES,
    MANIFEST,
    MODEL,
    Artifact,
    Reference,
    load,
    load_reference,
    seal,
    sha256_of,
    verify,
)
from detector.release.crop_graphs import MapContract, ScanContract
from detector.release.manifest import DamagedArtifactError
from detector.serving.loading import pack
from detector.serving.torchserve import mar_name


@pytest.fixture
def copy(untrained_artifact, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(untrained_artifact.folder, folder)
    return load(folder)


def test_an_artifact_read_back_is_the_one_that_was_sealed(untrained_artifact):
    assert verify(untrained_artifact.folder, untrained_artifact.digest) == untrained_artifact


def test_sealing_the_same_files_gives_the_same_digest(copy, untrained_artifact):
    assert seal(copy.folder, copy.manifest) == Artifact(copy.folder, copy.manifest, untrained_artifact.digest)


def test_one_changed_byte_is_found(copy):
    model = bytearray((copy.folder / MODEL).read_bytes())
    model[len(model) // 2] ^= 1
    (copy.folder / MODEL).write_bytes(model)
    with pytest.raises(DamagedArtifactError, match=MODEL):
        verify(copy.folder)


def test_a_manifest_of_another_digest_is_refused(copy):
    with pytest.raises(DamagedArtifactError, match="digest"):
        verify(copy.folder, "0" * 64)


def test_a_missing_file_is_found(copy):
    (copy.folder / EVALUATION).unlink()
    with pytest.raises(DamagedArtifactError, match=EVALUATION):
        verify(copy.folder)
    with pytest.raises(DamagedArtifactError, match=EVALUATION):
        seal(copy.folder, copy.manifest)


def test_a_file_name_that_leaves_the_folder_is_refused(copy):
    fields = json.loads((copy.folder / MANIFEST).read_bytes())
    fields["files"]["../../etc/passwd"] = "0" * 64
    (copy.folder / MANIFEST).write_text(json.dumps(fields))
    with pytest.raises(DamagedArtifactError, match="passwd"):
        load(copy.folder)


SCANNER = ScanContract(crop_px=64, threshold=0.3, reals_told=0.0, reals=9, export_difference=0.0)
LOCALIZER = MapContract(crop_px=64, threshold=0.3, reals_marked=0.02, reals=50, export_difference=0)


@pytest.mark.parametrize(("part", "contract"), [("localizer", LOCALIZER), ("scanner", SCANNER)])
def test_a_further_graph_that_is_declared_must_be_there_whole(copy, part, contract):
    declared = copy.manifest.model_copy(update={part: contract})
    names = (f"{part}.onnx", f"{part}_probe.safetensors", f"{part}_weights.safetensors")
    with pytest.raises(DamagedArtifactError, match=rf"lacks {part}\.onnx, {part}_probe\.safetensors"):
        seal(copy.folder, declared)
    for name in names:
        (copy.folder / name).write_bytes(b"a graph")
    sealed = seal(copy.folder, declared)
    assert getattr(verify(copy.folder, sealed.digest).manifest, part) == contract
    (copy.folder / names[0]).write_bytes(b"another")
    with pytest.raises(DamagedArtifactError, match="SHA-256"):
        verify(copy.folder)


@pytest.mark.parametrize("part", ["localizer", "scanner"])
def test_a_further_graph_that_nothing_declares_is_refused(copy, part):
    (copy.folder / f"{part}.onnx").write_bytes(b"a graph")
    with pytest.raises(DamagedArtifactError, match=rf"declares no {part} for {part}\.onnx"):
        seal(copy.folder, copy.manifest)


IMPORTABLE = ("forgewatch_service.py", "json.py", "sitecustomize.py", "numpy.abi3.so", "json.pyc")


@pytest.mark.parametrize("name", IMPORTABLE)
def test_a_file_that_python_could_import_makes_no_artifact(copy, name):
    (copy.folder / name).write_text("raise SystemExit")
    with pytest.raises(DamagedArtifactError, match=name):
        seal(copy.folder, copy.manifest)
    files = copy.manifest.files | {name: sha256_of(copy.folder / name)}
    forged = copy.manifest.model_copy(update={"files": files})
    (copy.folder / MANIFEST).write_text(forged.model_dump_json())
    with pytest.raises(DamagedArtifactError, match=name):
        verify(copy.folder)
    with pytest.raises(DamagedArtifactError, match=name):
        pack(Artifact(copy.folder, forged, sha256_of(copy.folder / MANIFEST)), copy.folder.parent)
    assert list(copy.folder.parent.glob("*.mar")) == []


def test_python_can_import_nothing_of_an_unpacked_archive_but_the_shim(untrained_artifact, tmp_path):
    with zipfile.ZipFile(pack(untrained_artifact, tmp_path)) as archive:
        archive.extractall(tmp_path / "unpacked")
    found = {module.name for module in pkgutil.iter_modules([str(tmp_path / "unpacked")])}
    assert found == {"forgewatch_service"}
    assert {name.split(".")[0] for name in FILES}.isdisjoint(sys.stdlib_module_names)


def test_a_file_that_changes_after_it_was_verified_is_not_packed(copy, tmp_path):
    verified = verify(copy.folder, copy.digest)
    (copy.folder / MODEL).write_bytes((copy.folder / MODEL).read_bytes() + b"\0")
    with pytest.raises(DamagedArtifactError, match=MODEL):
        pack(verified, tmp_path)
    assert not (tmp_path / mar_name(copy.digest)).exists()


def test_an_archive_that_lies_in_the_store_is_written_anew(untrained_artifact, tmp_path):
    written = pack(untrained_artifact, tmp_path).read_bytes()
    (tmp_path / mar_name(untrained_artifact.digest)).write_bytes(b"somebody else's")
    assert pack(untrained_artifact, tmp_path).read_bytes() == written


def test_a_link_in_place_of_a_file_is_no_artifact(copy, tmp_path):
    (copy.folder / MODEL).rename(tmp_path / "elsewhere")
    (copy.folder / MODEL).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedArtifactError, match=MODEL):
        verify(copy.folder)


def test_an_archive_has_the_same_bytes_every_time(copy, untrained_artifact):
    stores = copy.folder.parent / "a", copy.folder.parent / "b"
    for store in stores:
        store.mkdir()
    first, second = pack(untrained_artifact, stores[0]), pack(copy, stores[1])
    assert first.name == second.name == mar_name(copy.digest)
    assert first.read_bytes() == second.read_bytes()


def test_an_archive_holds_the_artifact_and_a_file_with_one_class(untrained_artifact, tmp_path):
    with zipfile.ZipFile(pack(untrained_artifact, tmp_path)) as archive:
        archive.extractall(tmp_path / "unpacked")
        described = json.loads(archive.read("MAR-INF/MANIFEST.json"))["model"]
        shim = archive.read(described["handler"]).decode()
    assert verify(tmp_path / "unpacked", untrained_artifact.digest).manifest == untrained_artifact.manifest
    assert described["modelVersion"] == untrained_artifact.version
    assert shim.count("class ") == 1


def reference():
    rng = np.random.default_rng(0)
    return Reference(
        rng.normal(size=(4, 3)).astype(np.float32),
        ("a", "b", "c", "d"),
        ("real", "real", "blend", "blend"),
        rng.normal(size=5).astype(np.float32),
        rng.normal(size=(5, 3)).astype(np.float32),
        rng.normal(size=(4, 2)).astype(np.float32),
        rng.normal(size=6).astype(np.float32),
        rng.normal(size=(6, 2)).astype(np.float32),
        rng.normal(size=(4, 3)).astype(np.float32),
        rng.normal(size=(5, 3)).astype(np.float32),
        np.array([2, 1]),
    )


def test_a_reference_read_back_is_the_one_that_was_saved(tmp_path):
    saved = reference()
    saved.save(tmp_path / "reference.safetensors")
    got = load_reference(tmp_path / "reference.safetensors", saved.ids, saved.families)
    arrays = [name for name, value in vars(saved).items() if isinstance(value, np.ndarray)]
    assert len(arrays) == 9
    for name in arrays:
        np.testing.assert_array_equal(getattr(got, name), getattr(saved, name))
    assert (got.ids, got.families) == (saved.ids, saved.families)


def test_whitening_takes_the_mean_away_first():
    made = reference()
    np.testing.assert_array_equal(made.whiten(made.mean[None]), np.zeros((1, 3), np.float32))


def test_names_that_do_not_count_the_rows_are_refused():
    made = reference()
    with pytest.raises(ValueError, match="4 rows of features, 4 of embeddings, 4 of traces, 3 ids"):
        replace(made, ids=made.ids[:3])


def test_groups_of_traces_that_do_not_fill_their_columns_are_refused():
    with pytest.raises(ValueError, match="are not 3 in all"):
        replace(reference(), trace_widths=np.array([2, 2]))

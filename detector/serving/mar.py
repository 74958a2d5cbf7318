"""An artifact as TorchServe's archive: the same bytes every time, and the very bytes that were verified."""

import hashlib
import json
import zipfile
from pathlib import Path

from detector.release.artifact import FILES, MANIFEST, Artifact
from detector.release.manifest import DamagedArtifactError
from ingest.durable import file_aside

MODEL_NAME = "forgewatch"

_SHIM_NAME = "forgewatch_service.py"
_SHIM = '''"""What TorchServe loads. It asks for a file that defines exactly one class."""
from detector.handler import Handler

class Service(Handler):
    """Forgewatch."""
'''
_EPOCH = (1980, 1, 1, 0, 0, 0)
_CHUNK_BYTES = 2**20


def mar_name(digest: str) -> str:
    """The archive's bare file name in the model store."""
    return f"{MODEL_NAME}-{digest}.mar"


def pack(artifact: Artifact, store: Path) -> Path:
    """Write the artifact's archive into the model store, over one that lies there; return its path.

    What is packed is hashed while it is copied, so no byte comes between the check and the archive.
    Nothing is compressed: weights do not shrink, and TorchServe unpacks it on each registration.
    Raises DamagedArtifactError where a byte is not the digest's, and OSError.
    """
    target = store / mar_name(artifact.digest)
    digests = {**artifact.manifest.files, MANIFEST: artifact.digest}
    if wrong := sorted(digests.keys() - FILES):
        raise DamagedArtifactError(f"{artifact.folder}: no artifact has files of these names: {wrong}")
    with file_aside(target) as aside:
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(_entry("MAR-INF/MANIFEST.json"), _torchserve_manifest(artifact.version))
            archive.writestr(_entry(_SHIM_NAME), _SHIM)
            for name in sorted(digests):
                _copy(artifact.folder / name, archive, digests[name])
        aside.chmod(0o644)  # TorchServe may run as another user
    return target


def _copy(path: Path, archive: zipfile.ZipFile, digest: str) -> None:
    entry, hashed = _entry(path.name), hashlib.sha256()
    entry.file_size = path.stat().st_size  # by which zipfile chooses the wider format
    with path.open("rb") as source, archive.open(entry, "w") as target:
        while chunk := source.read(_CHUNK_BYTES):
            hashed.update(chunk)
            target.write(chunk)
    if (found := hashed.hexdigest()) != digest:
        raise DamagedArtifactError(f"{path} has SHA-256 {found}, the release says {digest}")


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = 0o100644 << 16
    entry.create_system = 3
    return entry


def _torchserve_manifest(version: str) -> bytes:
    fields = {
        "createdOn": "01/01/1980 00:00:00",
        "runtime": "python",
        "model": {"modelName": MODEL_NAME, "handler": _SHIM_NAME, "modelVersion": version},
        "archiverVersion": "0.12.0",
    }
    return json.dumps(fields, indent=1).encode()

"""An artifact as TorchServe's archive: the same bytes every time, so that it can be compared and cached."""

import json
import zipfile
from pathlib import Path

from detector.artifact import MANIFEST, Artifact

MODEL_NAME = "forgewatch"

_SHIM_NAME = "forgewatch_service.py"
_SHIM = '''"""What TorchServe loads. It asks for a file that defines exactly one class."""
from detector.handler import Handler

class Service(Handler):
    """Forgewatch."""
'''
_EPOCH = (1980, 1, 1, 0, 0, 0)


def mar_name(digest: str) -> str:
    """The archive's bare file name in the model store."""
    return f"{MODEL_NAME}-{digest}.mar"


def pack(artifact: Artifact, store: Path) -> Path:
    """Write the artifact's archive into the model store, written aside and renamed; return its path.

    Nothing is compressed: weights do not shrink, and TorchServe unpacks it on each registration.
    """
    target = store / mar_name(artifact.digest)
    aside = target.with_suffix(".part")
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "MAR-INF/MANIFEST.json", _torchserve_manifest(artifact.version))
        _add(archive, _SHIM_NAME, _SHIM.encode())
        for name in sorted((*artifact.manifest.files, MANIFEST)):
            _add(archive, name, (artifact.folder / name).read_bytes())
    aside.replace(target)
    return target


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = 0o100644 << 16
    entry.create_system = 3
    archive.writestr(entry, data)


def _torchserve_manifest(version: str) -> bytes:
    fields = {
        "createdOn": "01/01/1980 00:00:00",
        "runtime": "python",
        "model": {"modelName": MODEL_NAME, "handler": _SHIM_NAME, "modelVersion": version},
        "archiverVersion": "0.12.0",
    }
    return json.dumps(fields, indent=1).encode()

"""A release as an MLflow model with the flavor ONNX, in a folder that MLflow reads as a model registry.

Written without MLflow, which is no dependency, in the layout of its file store: `models/NAME/version-N/` with
`meta.yaml` and `tags/`, and `models/NAME/aliases/`. JSON is what stands in the files that MLflow reads as
YAML, of which it is a part. Each version holds its model, with the release's manifest and card beside it:
the graph says scores, and the manifest's gate what follows from them. Maps and scans are other graphs, and
stay behind.
"""

import json
import platform
import shutil
import time
from collections.abc import Mapping
from importlib.metadata import version as version_of_package
from pathlib import Path
from typing import Any

from detector.records import Rollout
from detector.release.artifact import MANIFEST, MODEL, MODEL_CARD, Artifact
from detector.release.tensors import TensorSpec
from ingest.durable import folder_aside, make_folder, write_durably

NAME = "forgewatch"
"""The registered model, whose versions are releases."""
_DATA = "model.onnx"
_PACKAGES = ("numpy", "onnxruntime")


def export(artifact: Artifact, folder: Path, rollout: Rollout | None, state: str) -> int:
    """Write a verified release below a folder; return its version there, the same whenever it is written.

    rollout: whose releases the aliases name, of those in the folder: champion is the live one, challenger
    the one on trial, previous the one that a rollback would bring back. state: the release's, as a tag.
    Raises OSError.
    """
    models = folder.resolve() / "models" / NAME
    known = _versions(models)
    number = known.get(artifact.digest) or max(known.values(), default=0) + 1
    place = models / f"version-{number}"
    if artifact.digest not in known:
        with folder_aside(place) as aside:
            _write_model(artifact, aside / "model")
            _write_version(artifact, place, aside, number, state)
    else:
        _write_version(artifact, place, place, number, state)
    _write_aliases(models, _versions(models), rollout)
    now_ms = int(time.time() * 1000)
    _write(
        models / "meta.yaml", {"name": NAME, "creation_timestamp": now_ms, "last_updated_timestamp": now_ms}
    )
    return number


def _versions(models: Path) -> dict[str, int]:
    """The versions that are there, by the digests of their releases."""
    tags = models.glob("version-*/tags/digest")
    return {path.read_text(): int(path.parts[-3].removeprefix("version-")) for path in tags}


def _write_model(artifact: Artifact, folder: Path) -> None:
    make_folder(folder)
    shutil.copyfile(artifact.folder / MODEL, folder / _DATA)
    for name in (MANIFEST, MODEL_CARD):
        shutil.copyfile(artifact.folder / name, folder / name)
    packages = ["mlflow", "onnx", *(f"{name}=={version_of_package(name)}" for name in _PACKAGES)]
    (folder / "requirements.txt").write_text("\n".join(packages) + "\n")
    python, contract = platform.python_version(), artifact.manifest.contract
    environments: dict[str, Mapping[str, Any]] = {
        "conda.yaml": {
            "name": "mlflow-env",
            "channels": ["conda-forge"],
            "dependencies": [f"python={python}", "pip", {"pip": packages}],
        },
        "python_env.yaml": {"python": python, "dependencies": ["-r requirements.txt"]},
    }
    for name, environment in environments.items():
        _write(folder / name, environment)
    model = {
        "flavors": {
            "onnx": {"data": _DATA, "providers": ["CPUExecutionProvider"]},
            "python_function": {
                "data": _DATA,
                "env": {"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
                "loader_module": "mlflow.onnx",
                "python_version": python,
            },
        },
        "metadata": {"release": artifact.digest, "classes": list(artifact.manifest.classes)},
        "model_uuid": artifact.digest[:32],
        "signature": {
            "inputs": json.dumps([_tensor(spec) for spec in contract.inputs]),
            "outputs": json.dumps([_tensor(spec) for spec in contract.outputs]),
        },
    }
    _write(folder / "MLmodel", model)


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    """A tensor as MLflow's signatures have it: an open axis is -1."""
    shape = [size if isinstance(size, int) else -1 for size in spec.shape]
    return {"name": spec.name, "type": "tensor", "tensor-spec": {"dtype": spec.dtype, "shape": shape}}


def _write_version(artifact: Artifact, place: Path, at: Path, number: int, state: str) -> None:
    """Write what the registry says of a version that lies, or will lie, at its place."""
    meta, now_ms = at / "meta.yaml", int(time.time() * 1000)
    created = json.loads(meta.read_text())["creation_timestamp"] if meta.exists() else now_ms
    about = {
        "name": NAME,
        "version": number,
        "creation_timestamp": created,
        "last_updated_timestamp": now_ms,
        "current_stage": "None",
        "description": (artifact.folder / MODEL_CARD).read_text(errors="replace"),
        "source": str(place / "model"),
        "storage_location": str(place / "model"),
        "status": "READY",
    }
    for name, value in {"digest": artifact.digest, "state": state}.items():
        write_durably(at / "tags" / name, value.encode())
    _write(meta, about)


def _write_aliases(models: Path, versions: Mapping[str, int], rollout: Rollout | None) -> None:
    served = (
        {}
        if rollout is None
        else {"champion": rollout.stable, "challenger": rollout.canary, "previous": rollout.previous}
    )
    for alias in ("champion", "challenger", "previous"):
        path, number = models / "aliases" / alias, versions.get(served.get(alias) or "")
        if number is None:
            path.unlink(missing_ok=True)
        else:
            write_durably(path, str(number).encode())


def _write(path: Path, value: Mapping[str, Any]) -> None:
    write_durably(path, (json.dumps(value, indent=1) + "\n").encode())

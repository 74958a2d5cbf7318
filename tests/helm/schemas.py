"""JSON schemas for kubeconform, offline: schemas.py FOLDER KUBERNETES CRD.yaml…

Those of Kubernetes are what the package kubernetes-validate carries; those of custom resources come from
their CRDs, made strict: a field that they do not have is refused. A file is named as kubeconform asks for it
by {{.ResourceKind}}{{.KindSuffix}}.json: kind-group-version.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml


def main(folder: Path, version: str, *definitions: str) -> None:
    folder.mkdir(parents=True)
    carried = (
        Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"v{version}-local-strict"
    )
    for path in carried.glob("*.json"):
        (folder / path.name).write_text(json.dumps(beside(json.loads(path.read_text()))))
    for definition in definitions:
        for name, schema in custom(yaml.safe_load(Path(definition).read_text())):
            (folder / name).write_text(json.dumps(schema))


def beside(part: Any) -> Any:
    """References to the file of definitions lead to the one in the same folder."""
    if isinstance(part, list):
        return [beside(each) for each in part]
    if not isinstance(part, dict):
        return part
    kept = {
        name: value
        for name, value in part.items()
        if name not in ("$schema", "$id") or isinstance(value, dict)
    }
    return {
        name: value.replace("/api/_definitions.json", "_definitions.json")
        if name == "$ref" and isinstance(value, str)
        else beside(value)
        for name, value in kept.items()
    }


def custom(definition: Any) -> Iterator[tuple[str, Any]]:
    spec = definition["spec"]
    for version in spec["versions"]:
        schema = strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        group = spec["group"].partition(".")[0]
        yield f"{spec['names']['kind'].lower()}-{group}-{version['name']}.json", schema


def strict(part: Any) -> Any:
    """Refuse unknown fields; say in JSON Schema what CRDs have words of their own for."""
    if isinstance(part, list):
        return [strict(each) for each in part]
    if not isinstance(part, dict):
        return part
    part = {name: strict(value) for name, value in part.items()}
    if "properties" in part and not part.get("x-kubernetes-preserve-unknown-fields"):
        part.setdefault("additionalProperties", False)
    if part.pop("x-kubernetes-int-or-string", None):
        part = {name: value for name, value in part.items() if name not in ("type", "anyOf")}
        part["type"] = ["integer", "string"]
    if part.get("nullable") is True and isinstance(part.get("type"), str):
        part["type"] = [part["type"], "null"]
    return part


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

"""A step on disk, for the other processes of its training: safetensors alone."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from detector.release.architecture import Architecture
from ingest.durable import file_aside
from updater.data.stored_rows import StoredRows, described_rows
from updater.data.training_data import LabelledCrops
from updater.training.learnt_file import load_learnt, save_learnt
from updater.training.step import Options, Recipe, Step
from updater.training.weights import Weights

_BEGUN = "start_from."
PREVIOUS = "-previous"
"""How the name of the file of the previous network goes on from the step's."""


def save_step(path: Path, step: Step) -> None:
    """Write what a step trains on and from. Raises OSError.

    Of crops on disk it says where they lie: they have to stay there while other processes of this host train.
    """
    train, begun = step.train, step.start_from
    if step.previous is not None:
        save_learnt(_previous(path), step.previous)
    said = {
        "ids": train.ids,
        "families": train.families,
        "sources": train.sources,
        "groups": train.groups,
        "classes": step.classes,
        "architecture": step.architecture.model_dump(),
        "options": asdict(step.options),
        "recipe": asdict(step.recipe),
        "without": sorted(step.without),
        "seed": step.seed,
        "checkpoint": None if step.checkpoint is None else str(step.checkpoint),
        "previous": step.previous is not None,
        "start_from": begun and {"origin": begun.origin, "classes": begun.classes, "licence": begun.licence},
    }
    tensors = {"starts": torch.from_numpy(train.starts)}
    for name, rows in (("crops", train.crops), ("crop_features", train.crop_features)):
        if isinstance(rows, StoredRows):
            said[f"shards of {name}"], places = rows.described()
            tensors[name] = torch.from_numpy(places)
        elif rows is not None:
            tensors[name] = torch.from_numpy(rows)
    if begun is not None:
        tensors |= {_BEGUN + name: value for name, value in begun.tensors.items()}
    with file_aside(path) as aside:
        save_file({k: v.contiguous() for k, v in tensors.items()}, aside, {"step": json.dumps(said)})


def load_step(path: Path, device: torch.device) -> Step:
    """Read back what `save_step` wrote, to be trained on this device. Raises OSError."""
    with safe_open(path, "pt") as file:
        said = json.loads(file.metadata()["step"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    own = {name.removeprefix(_BEGUN): v for name, v in tensors.items() if name.startswith(_BEGUN)}
    arrays: dict[str, Any] = {k: v.numpy() for k, v in tensors.items() if not k.startswith(_BEGUN)}
    for name in ("crops", "crop_features"):
        if f"shards of {name}" in said:
            arrays[name] = described_rows(said[f"shards of {name}"], arrays[name])
    begun = said["start_from"]
    return Step(
        train=LabelledCrops(
            ids=tuple(said["ids"]),
            families=tuple(said["families"]),
            sources=tuple(said["sources"]),
            groups=tuple(said["groups"]),
            crops=arrays["crops"],
            starts=arrays["starts"],
            crop_features=arrays.get("crop_features"),
        ),
        classes=tuple(said["classes"]),
        architecture=Architecture.model_validate(said["architecture"]),
        previous=load_learnt(_previous(path), torch.device("cpu")) if said["previous"] else None,
        options=Options(**said["options"]),
        recipe=Recipe(**said["recipe"]),
        without=frozenset(said["without"]),
        seed=said["seed"],
        device=device,
        checkpoint=None if said["checkpoint"] is None else Path(said["checkpoint"]),
        start_from=begun
        and Weights(begun["origin"], own, begun["classes"] and tuple(begun["classes"]), begun["licence"]),
    )


def remove_step(path: Path) -> None:
    """Remove what `save_step` wrote. Raises OSError."""
    for file in (path, _previous(path)):
        file.unlink(missing_ok=True)


def _previous(path: Path) -> Path:
    return path.with_stem(path.stem + PREVIOUS)

"""A step on disk, for the other processes of its training: safetensors alone."""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from detector.architecture import Architecture
from ingest.durable import file_aside
from updater.training.learnt_file import load_learnt, save_learnt
from updater.training.step import Options, Recipe, Step
from updater.training_data import LabelledCrops

PREVIOUS = "-previous"
"""How the name of the file of the previous network goes on from the step's."""


def save_step(path: Path, step: Step) -> None:
    """Write what a step trains on and from, but for `start_from`, which no update has. Raises OSError."""
    train = step.train
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
    }
    tensors = {"crops": torch.from_numpy(train.crops), "starts": torch.from_numpy(train.starts)}
    if train.crop_features is not None:
        tensors["crop_features"] = torch.from_numpy(train.crop_features)
    with file_aside(path) as aside:
        save_file({k: v.contiguous() for k, v in tensors.items()}, aside, {"step": json.dumps(said)})


def load_step(path: Path, device: torch.device) -> Step:
    """Read back what `save_step` wrote, to be trained on this device. Raises OSError."""
    with safe_open(path, "pt") as file:
        said = json.loads(file.metadata()["step"])
        arrays = {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118
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
    )


def remove_step(path: Path) -> None:
    """Remove what `save_step` wrote. Raises OSError."""
    for file in (path, _previous(path)):
        file.unlink(missing_ok=True)


def _previous(path: Path) -> Path:
    return path.with_stem(path.stem + PREVIOUS)

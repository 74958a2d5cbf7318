"""A candidate's training in all the processes that torchrun started: one of them asks the others in.

The first process carries the update; the others hold nothing and wait until it has something to train. They
read the step from the run's folder, take their share of it (`updater.training.processes`) and are done.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, and not marked as exported

from detector.model.network import Network
from detector.release.manifest import Architecture
from ingest.durable import file_aside
from updater.data.stored_rows import StoredRows, described_rows
from updater.data.training_data import LabelledCrops
from updater.training import processes, two_stages
from updater.training.step import Learnt, Options, Recipe, Step
from updater.training.weights import Weights

_CALL = "forgewatch/call"
_LONGEST = timedelta(days=7)
"""Nobody waits as long as this: torchrun ends those who wait when the first process dies."""


def learn(step: Step, file: Path) -> Learnt:
    """Train on a step, with the other processes where there are any; they read it from `file`.

    Raises processes.PeerLostError where one of them dies.
    """
    if processes.started() == 1:
        return two_stages.learn(step)
    save_step(file, step)
    _store().set(_CALL, f"{step.device.type} {file}")
    with processes.joined(step.device) as device:
        learnt = two_stages.learn(replace(step, device=device))
    file.unlink(missing_ok=True)
    return learnt


def follow() -> None:
    """Wait until the first process trains, and train with it; or until it says that it does not.

    Raises processes.PeerLostError and OSError.
    """
    with processes.with_peers():
        store = _store()
        store.wait([_CALL], _LONGEST)
        called = store.get(_CALL).decode()
    if called:
        kind, file = called.split(" ", 1)
        with processes.joined(torch.device(kind)) as device:
            two_stages.learn(load_step(Path(file), device))


def dismiss() -> None:
    """Tell the other processes, where they still wait, that there is nothing to train.

    Where they cannot be told, torchrun is gone, and this process was not meant to outlive it.
    """
    if processes.started() > 1:
        with suppress(RuntimeError):
            _store().set(_CALL, "")


def _store() -> TCPStore:
    # torchrun's own, which all its processes reach; a path and a word go through it.
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=30))


_BEGUN, _PREVIOUS = "start_from.", "previous."


def save_step(path: Path, step: Step) -> None:
    """Write what a step trains on and from, the previous network without what its learner kept beside it.

    Of crops on disk it says where they lie: they have to stay there while other processes of this host train.
    Raises OSError.
    """
    train, begun, previous = step.train, step.start_from, step.previous
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
        "previous": previous
        and {
            "classes": previous.classes,
            "architecture": previous.network.architecture.model_dump(),
            "logits": len(previous.network.head.weight),
        },
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
    if previous is not None:
        state = previous.network.state_dict()
        tensors |= {_PREVIOUS + name: value.detach().cpu() for name, value in state.items()}
    with file_aside(path) as aside:
        save_file({k: v.contiguous() for k, v in tensors.items()}, aside, {"step": json.dumps(said)})


def load_step(path: Path, device: torch.device) -> Step:
    """Read back what `save_step` wrote, to be trained on this device. Raises OSError."""
    with safe_open(path, "pt") as file:
        said = json.loads(file.metadata()["step"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    own, state = _under(_BEGUN, tensors), _under(_PREVIOUS, tensors)
    arrays: dict[str, Any] = {
        k: v.numpy() for k, v in tensors.items() if not k.startswith((_BEGUN, _PREVIOUS))
    }
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
        previous=said["previous"] and _learnt(said["previous"], state),
        options=Options(**said["options"]),
        recipe=Recipe(**said["recipe"]),
        without=frozenset(said["without"]),
        seed=said["seed"],
        device=device,
        checkpoint=None if said["checkpoint"] is None else Path(said["checkpoint"]),
        start_from=begun
        and Weights(begun["origin"], own, begun["classes"] and tuple(begun["classes"]), begun["licence"]),
    )


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}


def _learnt(about: dict[str, Any], state: Mapping[str, Tensor]) -> Learnt:
    with torch.random.fork_rng(devices=[]):
        network = Network(Architecture.model_validate(about["architecture"]), about["logits"])
    network.load_state_dict(state)
    return Learnt(network.eval(), tuple(about["classes"]))

"""A learnt network on disk with its learner's state: safetensors alone, enough to go on from it."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from detector.model.network import Network
from detector.release.manifest import Architecture
from ingest.durable import write_durably
from updater.benchmark.learners.ridge import RandomFeatures
from updater.benchmark.learners.task_tokens import make_network
from updater.training.step import TrainedModel

FORMAT = "learnt-2"
NETWORK, KEPT = "network.", "kept."


def save_learnt(path: Path, learnt: TrainedModel) -> None:
    """Write a network and its learner's state, all of it or nothing. Raises OSError.

    Its architecture and its classes are in the metadata: a head may be another one than a step asked for,
    and a network of task tokens has its tasks.
    """
    network = learnt.network
    tensors = {NETWORK + name: value for name, value in network.state_dict().items()}
    tensors |= {KEPT + name: value for name, value in learnt.kept.items()}
    metadata = {
        "format": FORMAT,
        "architecture": network.architecture.model_dump_json(),
        "classes": json.dumps(learnt.classes),
    }
    own = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_durably(path, save(own, metadata))


def load_learnt(path: Path, device: torch.device) -> TrainedModel | None:
    """Read back a file of `save_learnt`; None where it is absent, damaged or of another format."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
    state = {name.removeprefix(NETWORK): v for name, v in tensors.items() if name.startswith(NETWORK)}
    kept = {name.removeprefix(KEPT): v.to(device) for name, v in tensors.items() if name.startswith(KEPT)}
    architecture = Architecture.model_validate_json(metadata["architecture"])
    tasks = architecture.tasks
    logits = max(end for _, end in tasks) if tasks else len(state["head.weight"])
    with torch.random.fork_rng(devices=[]):
        if "projection" in state:
            network: Network = RandomFeatures(architecture, logits, state["projection"])
        else:
            network = make_network(architecture, logits)
    network.load_state_dict(state)
    return TrainedModel(network.to(device).eval(), tuple(json.loads(metadata["classes"])), kept)

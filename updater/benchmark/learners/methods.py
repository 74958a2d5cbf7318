"""Every learner by its name on the command line. To add one is to add its file and its line here.

Each is the published method, in the form of its authors' code where that differs from the paper. The bounds
of continual learning, fine-tuning and joint training, stand here: they heed the scheme and the exposure, and
have no exemplars and no distillation. "dytox-joint" is one task of all classes for DyTox's network.

A learnt network is a file with its learner's state: safetensors alone, enough to go on from it.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from detector.model.network import Network
from detector.release.manifest import Architecture
from ingest.durable import write_durably
from updater.benchmark.learners import bias_correction, ccil, dytox, foster, icarl, lrcil, lucir, nscil, ridge
from updater.benchmark.learners.task_tokens import make_network
from updater.training import discriminant, two_stages
from updater.training.losses import classification
from updater.training.step import Learner, Step, TrainedModel

FORMAT = "learnt-2"
NETWORK, KEPT = "network.", "kept."


def fine_tune(step: Step) -> TrainedModel:
    """Train the previous network on the new classes of a step; the logits of old ones stay, and fade.

    Items of old classes are left out, unless there are no others.
    """
    new = [i for i, family in enumerate(step.train.families) if family not in step.old]
    if new:
        step = replace(step, train=step.train.take(new))
    trained = two_stages.train(step, "fine-tuning", lambda network, data: classification(step, data))
    return TrainedModel(trained.network, step.classes)


def learn_jointly(step: Step) -> TrainedModel:
    """Train a network from scratch on a step's items.

    Raises ValueError where a class has none of them: it would be a logit that nothing trained.
    """
    step = replace(step, previous=None)
    if step.architecture.frozen:
        return discriminant.learn(step)
    trained = two_stages.train(step, "joint", lambda network, data: classification(step, data))
    return TrainedModel(trained.network, step.classes)


LEARNERS: dict[str, Learner] = {
    "fine-tuning": fine_tune,
    "joint": learn_jointly,
    "softmax-rehearsal": two_stages.learn,
    "lda": discriminant.learn,
    "ridge": ridge.learn_ridge,
    "ranpac": ridge.learn_ranpac,
    "icarl": icarl.learn,
    "lucir": lucir.learn,
    "bic": bias_correction.learn_bic,
    "wa": bias_correction.learn_wa,
    "nscil": nscil.learn,
    "lrcil": lrcil.learn,
    "foster": foster.learn,
    "dytox": dytox.learn,
    "dytox-joint": lambda step: dytox.learn(replace(step, previous=None)),
    "ccil": ccil.learn,
}


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
            network: Network = ridge.RandomFeatures(architecture, logits, state["projection"])
        else:
            network = make_network(architecture, logits)
    network.load_state_dict(state)
    return TrainedModel(network.to(device).eval(), tuple(json.loads(metadata["classes"])), kept)

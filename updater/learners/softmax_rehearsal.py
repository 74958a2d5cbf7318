"""Multi-class softmax with rehearsal, distillation and a balanced head, and a pseudo-forgery class.

One cross-entropy over the K known classes and the pseudo-forgeries (Bendale and Boult's K+1st
class). An update starts from the previous network, sees old exemplars beside the new ones
(rehearsal), and is held to the previous network's logits of the old classes (distillation: Li and
Hoiem 2016, "Learning without forgetting", eq. 2-3, at temperature 2). The last stage trains what
lies above the pooled features on batches that hold every class equally often, against the bias
towards large and new classes (balanced fine-tuning: Castro et al. 2018, "End-to-end incremental
learning", section 4.3).
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.architecture import FEATURE_VERSION
from detector.network import Architecture, Network
from updater.learners.checkpoint import Checkpoint
from updater.learners.pools import as_images, backbone_rows, classify_items, draw_crops, forensic_rows
from updater.outliers.exposure import expose
from updater.training_data import LabelledCrops

Progress = Callable[[str, int, int], None]

_TEMPERATURE = 2.0
_WARM_UP = 0.2
_SAVE_EVERY = 25


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train. One step is one batch of items."""

    backbone_steps: int
    backbone_rate: float
    balanced_steps: int
    balanced_rate: float
    pseudo_share: float
    """pseudo-forgeries made, as a share of the training items"""
    distillation: float
    batch: int = 64
    crops_an_item: int = 1
    """crops drawn of an item for one step: each crop has to carry its item's class alone"""
    weight_decay: float = 0.02
    label_smoothing: float = 0.05


FIRST = Recipe(100, 3e-3, 2000, 2e-3, 0.3, 0.0)
UPDATE = Recipe(50, 1e-3, 1500, 2e-3, 0.5, 1.0)


def learn(
    train: LabelledCrops,
    classes: tuple[str, ...],
    architecture: Architecture,
    *,
    previous: tuple[Network, tuple[str, ...]] | None = None,
    without: frozenset[str] = frozenset(),
    seed: int,
    device: torch.device | None = None,
    checkpoint: Path | None = None,
    progress: Progress = lambda stage, done, total: None,
    recipe: Recipe | None = None,
) -> Network:
    """Train a network on labelled items, from scratch or from the previous one.

    classes: "real" first; every item's family is among them and each has at least one item.
    without: kinds of pseudo-forgeries left out. checkpoint: a file to go on from and to write to; it
    is used only where it was made from the same items, classes, architecture and seed. progress gets
    (stage, done, total). Returns the network on the device, in evaluation mode. The same seed gives
    the same network on the same device with the same number of threads; the global random state is
    left as it was. Raises ValueError for classes or a previous network that do not fit.
    """
    device = device or torch.device("cpu")
    recipe = recipe or (UPDATE if previous else FIRST)
    _check(train, classes, architecture, previous)
    made_from = _identity(
        train, classes, previous, architecture, sorted(without), seed, recipe, FEATURE_VERSION
    )
    saved = Checkpoint(checkpoint, made_from, ("backbone", "balanced"))
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        network = _start(classes, architecture, previous).to(device)
        count = round(len(train) * recipe.pseudo_share)
        outliers = expose(train, count, without, seed, lambda *at: progress("pseudo-forgeries", *at))
        targets = np.array([classes.index(f) for f in train.families] + [len(classes)] * count)
        crops = np.concatenate([train.crops, outliers.crops])
        starts = np.concatenate([train.starts, train.starts[-1] + outliers.starts[1:]])
        features = forensic_rows(network, crops, device, lambda *at: progress("features", *at))
        if previous is None and network.forensics is not None:
            _standardise(network, features[: len(train.crops)])
        teacher = None
        if previous is not None:
            teacher = _teacher(previous, classes, crops, starts, features, device)
        state = _Training(network, targets, starts, features, teacher, recipe, seed, saved, device)
        state.run("backbone", _weights(targets, 0.5), crops, progress)
        rows = backbone_rows(network, crops, device, lambda *at: progress("backbone features", *at))
        state.run("balanced", _weights(targets, 1.0), rows, progress)
    saved.remove()
    return network.eval()


@dataclass
class _Training:
    network: Network
    targets: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    features: Tensor
    teacher: tuple[Tensor, list[int]] | None
    recipe: Recipe
    seed: int
    saved: Checkpoint
    device: torch.device

    def run(
        self,
        stage: str,
        weights: npt.NDArray[np.float64],
        source: npt.NDArray[np.uint8] | Tensor,
        progress: Progress,
    ) -> None:
        """Train the whole network on crops, or what lies above the backbone on its cached rows."""
        network, recipe = self.network, self.recipe
        whole = isinstance(source, np.ndarray)
        steps = recipe.backbone_steps if whole else recipe.balanced_steps
        rate = recipe.backbone_rate if whole else recipe.balanced_rate
        trained = [p for n, p in network.named_parameters() if whole or not n.startswith("backbone.")]
        optimiser = torch.optim.AdamW(trained, lr=rate, weight_decay=recipe.weight_decay)
        done = self.saved.resume(stage, network, optimiser)
        if done is None:
            return
        network.train()
        if not whole:
            network.backbone.eval()
        for step in range(done, steps):
            # Every step has its own random state, so that a resumed run repeats an unbroken one.
            rng = np.random.default_rng([self.seed, 3, int(whole), step])
            torch.manual_seed(int(rng.integers(2**31)))
            for group in optimiser.param_groups:
                group["lr"] = rate * one_cycle(step / steps)
            items = rng.choice(len(self.targets), recipe.batch, p=weights)
            rows, pooling = draw_crops(rng, items, self.starts, recipe.crops_an_item)
            pooling, at = pooling.to(self.device), torch.from_numpy(rows).to(self.device)
            if isinstance(source, np.ndarray):
                seen = pooling @ network.backbone(network.front(as_images(source[rows], self.device)))
            else:
                seen = pooling @ source[at]
            loss = self._loss(seen, pooling @ self.features[at], items)
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(trained, 5.0)
            optimiser.step()
            progress(stage, step + 1, steps)
            if (step + 1) % _SAVE_EVERY == 0 or step + 1 == steps:
                self.saved.save(stage, step + 1, network, optimiser)

    def _loss(self, seen: Tensor, features: Tensor, items: npt.NDArray[np.int64]) -> Tensor:
        output = self.network.classify(seen, features)
        joint = torch.cat([output.logits, output.pseudo_logit[:, None]], 1)
        target = torch.from_numpy(self.targets[items]).to(self.device)
        loss = F.cross_entropy(joint, target, label_smoothing=self.recipe.label_smoothing)
        if self.teacher is None:
            return loss
        wanted, columns = self.teacher
        return loss + self.recipe.distillation * distillation(
            output.logits[:, columns], wanted[torch.from_numpy(items).to(self.device)]
        )


def distillation(logits: Tensor, teacher: Tensor, temperature: float = _TEMPERATURE) -> Tensor:
    """Return T^2 * mean KL(softmax(teacher / T) || softmax(logits / T)), a scalar; both float32 [M, K]."""
    return temperature**2 * F.kl_div(
        F.log_softmax(logits / temperature, 1), F.softmax(teacher / temperature, 1), reduction="batchmean"
    )


def one_cycle(done: float) -> float:
    """Return the share of the peak rate at this share of the steps: up in a fifth, down as a cosine."""
    if done < _WARM_UP:
        return 0.05 + 0.95 * done / _WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (done - _WARM_UP) / (1 - _WARM_UP)))


def _start(
    classes: tuple[str, ...], architecture: Architecture, previous: tuple[Network, tuple[str, ...]] | None
) -> Network:
    network = Network(architecture, len(classes))
    if previous is None:
        return network
    old, known = previous
    state = {k: v for k, v in old.state_dict().items() if not k.startswith("head.")}
    network.load_state_dict(state, strict=False)
    with torch.no_grad():
        for row, name in enumerate(known):
            network.head.weight[classes.index(name)] = old.head.weight[row]
            network.head.bias[classes.index(name)] = old.head.bias[row]
    return network


def _teacher(
    previous: tuple[Network, tuple[str, ...]],
    classes: tuple[str, ...],
    crops: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    features: Tensor,
    device: torch.device,
) -> tuple[Tensor, list[int]]:
    """Return the previous network's logits of each whole item, and the columns they belong to."""
    old, known = previous[0].to(device), previous[1]
    rows = backbone_rows(old, crops, device)
    return classify_items(old, rows, features, starts).logits, [classes.index(name) for name in known]


def _standardise(network: Network, features: Tensor) -> None:
    network.feature_mean.copy_(features.mean(0))
    network.feature_scale.copy_(features.std(0).clamp_min(1e-3))


def _weights(targets: npt.NDArray[np.int64], power: float) -> npt.NDArray[np.float64]:
    """Return the chance of each item to be drawn: 1 makes classes equal, 0 items."""
    weights = (1 / np.bincount(targets)[targets]) ** power
    return np.asarray(weights / weights.sum())


def _check(
    train: LabelledCrops,
    classes: Sequence[str],
    architecture: Architecture,
    previous: tuple[Network, tuple[str, ...]] | None,
) -> None:
    if not classes or classes[0] != "real" or len(set(classes)) != len(classes):
        raise ValueError(f"the classes must be distinct and begin with real: {list(classes)}")
    if set(train.families) != set(classes):
        raise ValueError(
            f"the items' families {sorted(set(train.families))} are not the classes {sorted(classes)}"
        )
    if previous is None:
        return
    if previous[0].architecture != architecture:
        raise ValueError("an update keeps the previous network's architecture")
    if not set(previous[1]) <= set(classes):
        raise ValueError(f"classes went missing: {sorted(set(previous[1]) - set(classes))}")


def _identity(
    train: LabelledCrops,
    classes: tuple[str, ...],
    previous: tuple[Network, tuple[str, ...]] | None,
    *rest: object,
) -> str:
    """Return a digest of everything that a run is made from."""
    digest = hashlib.sha256(json.dumps([train.ids, train.families, classes, *map(repr, rest)]).encode())
    digest.update(train.starts.tobytes())
    digest.update(train.crops.tobytes())
    if previous is not None:
        digest.update(json.dumps(previous[1]).encode())
        for name, value in previous[0].state_dict().items():
            digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()

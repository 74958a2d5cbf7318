"""A learner's input and output: one step of a stream, and the network after it."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from detector.model.network import CosineHead, Network
from detector.release.manifest import Architecture
from updater.data.training_data import LabelledCrops
from updater.progress import Progress, no_progress
from updater.training.weights import Weights

Optimizer = Literal["adamw", "adam", "sgd"]
Schedule = Literal["one-cycle", "cosine", "tenths"]
Augment = Literal["none", "flip", "flip-shift"]
"""of each crop, while the backbone is trained"""

_WARM_UP = 0.2
# Of 170 epochs WA and BiC fall at 60, 100 and 140; of the first task's 200 at 60, 120 and 170.
_FALLS = (0.35, 0.6, 0.85)


def one_cycle(done: float) -> float:
    """Return the share of the peak at this share of the steps: up in a fifth, then down as a cosine."""
    if done < _WARM_UP:
        return 0.05 + 0.95 * done / _WARM_UP
    return cosine((done - _WARM_UP) / (1 - _WARM_UP))


def cosine(done: float) -> float:
    """Return the share of the peak: down as half a cosine, from 1 to 0 (FOSTER's published schedule)."""
    return 0.5 * (1 + math.cos(math.pi * done))


def tenths(done: float) -> float:
    """Return the share of the peak: a tenth of the one before after 35, 60 and 85 % of the steps."""
    return float(0.1 ** sum(done >= fall for fall in _FALLS))


Course = Callable[[float], float]
SCHEDULES: Mapping[Schedule, Course] = {"one-cycle": one_cycle, "cosine": cosine, "tenths": tenths}
"""shares of the peak of a learning rate, by the share of the steps that is done"""


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train. One step is one batch of items."""

    backbone_steps: int
    backbone_rate: float
    balanced_steps: int
    balanced_rate: float
    pseudo_share: float
    """pseudo-forgeries made, as a share of the training items"""
    batch: int = 64
    weight_decay: float = 0.02
    label_smoothing: float = 0.05
    optimizer: Optimizer = "adamw"
    """of the stages that train on items, at the rates of this recipe; SGD has a momentum of 0.9"""
    schedule: Schedule = "one-cycle"
    flip: bool = False
    """whether crops are mirrored at random while the backbone is trained; their forensic features, and what a
    previous network says of them, stay those of the crop as it is"""
    mixup: float = 0.0
    """alpha of Mixup while the backbone is trained; 0 for none"""
    shift_px: int = 0
    """most that crops are moved by while the backbone is trained, in each direction; black behind"""


FIRST = Recipe(100, 3e-3, 2000, 2e-3, 0.3)
UPDATE = Recipe(50, 1e-3, 1500, 2e-3, 0.5)


Aggregate = Literal["sumlog", "sumlogit", "sumfeat", "max", "sumlogit-twice", "sumfeat-twice", "max-twice"]
"""CDDB eq. 9a-d, as the published code has them; "twice" as its tree of DyTox does"""


@dataclass(frozen=True)
class Options:
    """The compared options. Each learner says which of them it heeds."""

    scheme: Literal["bc", "mc", "mt"] = "mc"
    """binary, multi-class or multi-task (CDDB section 4)"""
    aggregate: Aggregate = "sumlogit"
    """how "mt" makes two scores of the logits"""
    binary_share: float = 0.3
    """lambda of CDDB eq. 7, the share of "mt"'s binary loss: 0.3 in its main tables, .1 to .9 in table 8"""
    distillation: float = 1.0
    """weight of the distillation loss; 0 leaves it out"""
    distilled: Literal["all", "exemplars"] = "all"
    """what the distillation loss is taken over: all items, or those of old classes alone (CDDB eq. 3)"""
    exposure: Literal["none", "class", "outliers"] = "class"
    """pseudo-forgeries: not used, as a K+1st class, or held to a high energy"""


@dataclass(frozen=True)
class TrainedModel:
    """A network in evaluation mode, its classes by logit, and its learner's state for the next step.

    kept: tensors by name that this learner alone understands, such as the covariances of a null space.
    A learner that keeps nothing can go on from a release, which holds the network alone. "head.weight" and
    its like are a trained head where the network's own is made of something else, such as class means.
    """

    network: Network
    classes: tuple[str, ...]
    kept: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One step of a stream: the new items together with the exemplars of earlier steps.

    train: new items and exemplars; every item's family is among the classes and each class has at
    least one item, unless `previous` knows it. classes: those of `previous` in their order, then the new
    ones; "real" or "SOURCE/real" is a class of real media, any other a forgery family. without: kinds of
    pseudo-forgeries left out. checkpoint: a file to go on from and to write to; it is used only where
    it was made from the same step. start_from: what the network begins with where there is no previous one;
    else at random.
    """

    train: LabelledCrops
    classes: tuple[str, ...]
    architecture: Architecture
    previous: TrainedModel | None = None
    options: Options = Options()
    recipe: Recipe = FIRST
    without: frozenset[str] = frozenset()
    seed: int = 0
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a device is a value
    checkpoint: Path | None = None
    start_from: Weights | None = None
    progress: Progress = no_progress

    def __post_init__(self) -> None:
        """Raise ValueError for classes, or a previous network, that do not fit."""
        classes, old = self.classes, self.previous.classes if self.previous else ()
        if not classes or len(set(classes)) != len(classes):
            raise ValueError(f"the classes must be distinct, and at least one: {list(classes)}")
        if self.options.scheme != "mc" and not any(is_real(name) for name in classes):
            raise ValueError(f"{self.options.scheme} needs a class of real media: {list(classes)}")
        if classes[: len(old)] != tuple(old):
            raise ValueError(f"the classes {list(classes)} do not begin with the previous {list(old)}")
        families = set(self.train.families)
        if not families <= set(classes) or not set(classes) <= families | set(old):
            raise ValueError(f"the items' families {sorted(families)} are not the classes {sorted(classes)}")
        wanted = self.architecture.model_copy(update={"tasks": None, "picture": None})
        if self.previous is not None and _trained_as(self.previous) != wanted:
            raise ValueError("an update keeps the previous network's architecture")

    @property
    def old(self) -> tuple[str, ...]:
        """The classes of the previous step, empty for the first."""
        return self.previous.classes if self.previous else ()


Learner = Callable[[Step], TrainedModel]
"""The same step gives the same network on the same device with the same number of threads; the global
random state is left as it was. Raises ValueError for an option that the learner does not have."""


def _trained_as(learnt: TrainedModel) -> Architecture:
    """Return a network's architecture with the head that was trained, which need not be the one it bears.

    Without its tasks, to which each step may add, and without the model on whole pictures beside it, which
    may come with any step.
    """
    own = learnt.network.architecture.model_copy(update={"tasks": None, "picture": None})
    if "head.weight" not in learnt.kept:
        return own
    return own.model_copy(update={"head": "cosine" if "head.scale" in learnt.kept else "linear"})


def is_real(name: str) -> bool:
    """Whether a class is of real media: "real" itself, or "SOURCE/real"."""
    return name.rpartition("/")[2] == "real"


HEAD_PREFIX = "head."


def with_head(network: Network, state: Mapping[str, Tensor]) -> Network:
    """Return a copy of a network with another head, which is linear if it has a bias and cosine if not.

    state: weight, float32 [K, D]; bias, float32 [K], or the cosine head's scale, which where it is not
    given stays as in a new head.
    """
    result = copy.deepcopy(network)
    weight = state["weight"]
    with torch.random.fork_rng(devices=[]):
        head: nn.Module
        if "bias" in state:
            head = nn.Linear(weight.shape[1], weight.shape[0])
        else:
            head = CosineHead(weight.shape[1], weight.shape[0])
    head.load_state_dict({**head.state_dict(), **state})
    result.head = head.to(weight.device).train(network.training)
    kind = "linear" if "bias" in state else "cosine"
    result.architecture = network.architecture.model_copy(update={"head": kind})
    return result


def load_trained(learnt: TrainedModel) -> Network:
    """Return the network with the head that was trained: its own, unless another one was kept."""
    kept = {k.removeprefix(HEAD_PREFIX): v for k, v in learnt.kept.items() if k.startswith(HEAD_PREFIX)}
    return with_head(learnt.network, kept).eval() if kept else learnt.network

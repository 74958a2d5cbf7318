"""How a benchmark trains: the method, the network, the budget of exemplars, and for how long."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from pydantic import JsonValue

from detector.release.manifest import NO_BACKBONE, Architecture
from updater.benchmark.learners.task_tokens import make_network
from updater.experts.look import Expert, digests_of
from updater.training.step import Augment, Optimizer, Options, Recipe, Schedule
from updater.training.weights import HEADS, Weights, put


def without_head(weights: Weights) -> Weights:
    """Return the weights below the head, which any other classes can begin with."""
    if not weights.whole:
        return weights
    below = {name: value for name, value in weights.tensors.items() if not name.startswith(HEADS)}
    return replace(weights, tensors=below, classes=None)


@dataclass(frozen=True)
class Setup:
    """Everything that a run follows from, its stream and its seed aside.

    memory: exemplars of earlier tasks, all classes together. backbone_epochs, head_epochs: times that an item
    is drawn to train the whole network, and what lies above the backbone, which costs next to nothing, in at
    least so many steps. rates: highest learning rate, in the first step and in later ones, of the stage that
    `trained_epochs` is of; None: the default's. batch: items of a training step. mixup: its alpha, or 0.
    augment: of crops while the backbone is trained; they are shifted by an eighth of their side. rejection:
    names of scores; the figures are of the first. start_from: what a first network begins with; else at
    random. experts: networks with a real/fake head of their own, beside the one that is trained. distortions:
    NAME:LEVEL of what the last network is measured under, too.
    """

    learner: str = "softmax-rehearsal"
    options: Options = field(default_factory=Options)
    architecture: Architecture = field(default_factory=Architecture)
    memory: int = 500
    backbone_epochs: float = 4.5
    head_epochs: float = 93.0
    least_steps: int = 300
    rates: tuple[float, float] | None = None
    batch: int = 64
    label_smoothing: float = 0.05
    mixup: float = 0.0
    augment: Augment = "none"
    optimizer: Optimizer = "adamw"
    schedule: Schedule = "one-cycle"
    weight_decay: float = 0.02
    rejection: tuple[str, ...] = ("fused",)
    device: str = "cpu"
    start_from: Weights | None = None
    experts: tuple[Expert, ...] = ()
    distortions: tuple[str, ...] = ()

    def as_record(self) -> dict[str, JsonValue]:
        """Return every option by name, for the record; weights by their digest, where there are some."""
        whole = asdict(replace(self, start_from=None, experts=()))
        del whole["experts"]
        lists = {name: list(whole[name]) for name in ("rejection", "distortions")}
        # Each of several processes has a GPU of its own number.
        more: dict[str, Any] = {"architecture": self.architecture.model_dump(mode="json")}
        more |= {"rates": self.rates and list(self.rates), "device": self.torch_device.type}
        begun = whole.pop("start_from") if self.start_from is None else self.start_from.digest
        return whole | lists | more | ({"start_from": begun} if begun else {}) | digests_of(self.experts)

    def begin(self, classes: tuple[str, ...]) -> Weights | None:
        """Return what a first network of these classes begins with: a head of others is left out.

        With "bc" a head of real and fake goes on, whatever its classes: so zero-shot rows are measured.
        """
        begun = self.start_from
        if begun is None or begun.classes in (None, classes):
            return begun
        return replace(begun, classes=None) if self.options.scheme == "bc" else without_head(begun)

    def check_weights(self) -> None:
        """Raise WeightsError where the weights to begin with are of another network."""
        if self.start_from is not None:
            tasks = ((0, 1),) if self.learner.startswith("dytox") else None
            network = make_network(self.architecture.model_copy(update={"tasks": tasks}), 1)
            put(network, without_head(self.start_from), ())

    def recipe(self, items: int, *, first: bool) -> Recipe:
        """Return the recipe for so many items: equal steps an item, whether all at once or task by task."""
        share = 0.3 if first else 0.5
        drawn = items * (1 + (share if self.options.exposure != "none" else 0))
        backbone_rate, head_rate = 3e-3 if first else 1e-3, 2e-3
        if self.rates is not None:
            own = self.rates[0 if first else 1]
            backbone_rate, head_rate = (backbone_rate, own) if self.bare else (own, head_rate)
        return Recipe(
            backbone_steps=round(self.backbone_epochs * drawn / self.batch),
            backbone_rate=backbone_rate,
            balanced_steps=max(self.least_steps, round(self.head_epochs * drawn / self.batch)),
            balanced_rate=head_rate,
            pseudo_share=share,
            batch=self.batch,
            weight_decay=self.weight_decay,
            optimizer=self.optimizer,
            schedule=self.schedule,
            label_smoothing=self.label_smoothing,
            mixup=self.mixup,
            flip=self.augment != "none",
            shift_px=self.architecture.crop_px // 8 if self.augment == "flip-shift" else 0,
        )

    def trained_epochs(self, epochs: float) -> "Setup":
        """Return the setup in which an item is drawn so often to train the whole network.

        Without a backbone that is the head and the forensic branch, for at least one step.
        """
        if not epochs:  # as it is
            return replace(self, backbone_epochs=0.0, head_epochs=0.0, least_steps=0)
        if self.bare:
            return replace(self, head_epochs=epochs, least_steps=1)
        return replace(self, backbone_epochs=epochs)

    @property
    def bare(self) -> bool:
        return self.architecture.backbone == NO_BACKBONE

    @property
    def reads_features_alone(self) -> bool:
        """Whether nothing but a plain network of a family left out looks at pixels."""
        looks = {"augmix", "odin-published"} & {*self.rejection} or self.distortions or self.experts
        return self.architecture.frozen and not looks

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

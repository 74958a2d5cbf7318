"""How a benchmark trains: the method, the network, the budget of exemplars, and for how long."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

import torch
from pydantic import JsonValue

from detector.architecture import Architecture
from updater.training.step import Options, Recipe
from updater.training.weights import Weights

Progress = Callable[[str, int, int], None]

_BATCH = 64


@dataclass(frozen=True)
class Setup:
    """Everything that a run follows from, its stream and its seed aside."""

    learner: str = "softmax-rehearsal"
    options: Options = field(default_factory=Options)
    architecture: Architecture = field(default_factory=Architecture)
    memory: int = 500
    """exemplars of earlier tasks, all classes together"""
    backbone_epochs: float = 4.5
    """times that an item is drawn to train the whole network"""
    head_epochs: float = 93.0
    """and to train what lies above the backbone, which costs next to nothing"""
    least_steps: int = 300
    """of the head, however few the items"""
    rejection: tuple[str, ...] = ("fused",)
    """names of post-hoc scores; the first is the one that the figures are of"""
    device: str = "cpu"
    start_from: Weights | None = None
    """what a first network begins with; else at random"""

    def described(self) -> dict[str, JsonValue]:
        """Return every option by name, for the record; weights by their digest, where there are some."""
        whole = asdict(replace(self, start_from=None))
        del whole["start_from"]
        if self.start_from is not None:
            whole["start_from"] = self.start_from.digest
        whole |= {"architecture": self.architecture.model_dump(mode="json")}
        # Each of several processes has a GPU of its own number.
        return whole | {"rejection": list(self.rejection), "device": self.torch_device.type}

    def recipe(self, items: int, *, first: bool) -> Recipe:
        """Return the recipe for so many items: equal steps an item, whether all at once or task by task."""
        share = 0.3 if first else 0.5
        drawn = items * (1 + (share if self.options.exposure != "none" else 0))
        return Recipe(
            backbone_steps=round(self.backbone_epochs * drawn / _BATCH),
            backbone_rate=3e-3 if first else 1e-3,
            balanced_steps=max(self.least_steps, round(self.head_epochs * drawn / _BATCH)),
            balanced_rate=2e-3,
            pseudo_share=share,
            batch=_BATCH,
        )

    @property
    def torch_device(self) -> torch.device:
        """The device to train on."""
        return torch.device(self.device)

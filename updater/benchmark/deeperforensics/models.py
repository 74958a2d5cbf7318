"""The models by name: each is trained on clips' crops, and says of a clip how probably it is forged.

A clip is what the stream makes of a video: some frames, and crops of each. What the network reads of them is
averaged over all crops of a clip.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from detector.model.backbone import BackboneError, architecture_of
from detector.release.architecture import NO_BACKBONE, Architecture
from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.tasks import DataError
from updater.candidate.calibrate import output_of
from updater.data.training_data import LabelledCrops
from updater.progress import Progress
from updater.training.softmax_rehearsal import learn
from updater.training.step import Learnt, Options, Step

FORENSIC = "forensic"
"""the product's own features and its head"""
FRAMES = "frames:"
"""before the name of a timm model, which is trained on the crops alone"""

_OPTIONS = Options(exposure="none", distillation=0.0)


class ModelError(DataError):
    """A model's name that is none. One line."""


def check_model(name: str) -> None:
    """Raise ModelError where there is no model of that name."""
    architecture(name, 128)


def architecture(name: str, crop_px: int) -> Architecture:
    """Return the architecture of a model for crops of that side. Raises ModelError."""
    if name == FORENSIC:
        return Architecture(backbone=NO_BACKBONE, crop_px=crop_px)
    if not name.startswith(FRAMES):
        raise ModelError(f"--model {name} is none: choose {FORENSIC}, or {FRAMES}NAME with a model of timm")
    try:
        return architecture_of(name.removeprefix(FRAMES), crop_px=crop_px, forensic=False)
    except BackboneError as error:
        raise ModelError(f"--model {name}: {error}") from error


def train(name: str, items: LabelledCrops, seed: int, device: torch.device, progress: Progress) -> Learnt:
    """Train a model on real and forged clips. Raises ModelError."""
    setup = Setup(options=_OPTIONS, architecture=architecture(name, items.crops.shape[1]))
    classes = ("real", *sorted(set(items.families) - {"real"}))
    return learn(
        Step(
            items,
            classes,
            setup.architecture,
            options=setup.options,
            recipe=setup.recipe(len(items), first=True),
            seed=seed,
            device=device,
            progress=progress,
        )
    )


def forged(learnt: Learnt, items: LabelledCrops, device: torch.device) -> NDArray[np.float64]:
    """Return how probably each clip is forged, float64 [n]."""
    output = output_of(learnt.network, items, device, "clips", lambda *at: None)
    logits = output.logits.double()
    return np.asarray(1 - torch.softmax(logits, 1)[:, learnt.classes.index("real")].numpy())

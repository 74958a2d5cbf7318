"""Fine-tuning of the model that looks at pictures: all of it, its last blocks, or low-rank adapters.

What is trained is the backbone under a linear head of the classes, which is then left: the vote is fitted to
what the tuned backbone gives (`updater.training.picture_vote`). Normalisations keep the statistics that the
model came with, since a few pictures would give worse ones.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from detector.model.network import PictureBranch
from updater.data.training_data import LabelledCrops
from updater.training.allocation import keep_freed_memory
from updater.training.checkpoint import Checkpoint
from updater.training.crop_rows import as_images
from updater.training.frozen import digest_of
from updater.training.loop import item_weights
from updater.training.pieces import as_memory_allows, in_pieces
from updater.training.precision import half_precision, loss_scale, unscale
from updater.training.schedules import one_cycle

NONE, WHOLE, ADAPTERS = "none", "whole", "adapters"
MOST_ITEMS = 16
"""of a step: a few hundred items are to give many steps"""

_RANK, _ALPHA = 8, 16
"""of adapters, as LoRA has them (Hu et al. 2022): what they add is scaled by alpha / rank"""
_HEAD_RATE = 1e-3
_WEIGHT_DECAY = 0.02
_MOST_NORM = 5.0
_SAVE_EVERY = 25
_STAGE = "tuning"


class TuningError(ValueError):
    """A model cannot be tuned as asked for. Fatal. One line: which, and why not."""


@dataclass(frozen=True)
class Tuning:
    """What of a model is trained further, and for how long."""

    what: str
    """whole, adapters, or last-N"""
    epochs: float
    """times that an item is drawn"""
    rate: float
    """highest learning rate of what is tuned"""
    batch: int
    """items of a step"""

    @staticmethod
    def of(what: str, epochs: float, rate: float | None, batch: int) -> "Tuning | None":
        """Return what the settings or options say; None for "none".

        rate: None for 1e-4, or 1e-3 of adapters, which begin as nothing. batch: at most MOST_ITEMS are taken.
        """
        if what == NONE:
            return None
        return Tuning(what, epochs, rate or (1e-3 if what == ADAPTERS else 1e-4), min(batch, MOST_ITEMS))


def tune(
    branch: PictureBranch,
    items: LabelledCrops,
    targets: Sequence[int],
    tuning: Tuning,
    *,
    seed: int,
    device: torch.device,
    checkpoint: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Train the branch's backbone further on items with pictures, in place. It ends on the CPU, frozen.

    targets: the number of each item's class. Classes are drawn equally often, and every second picture is
    mirrored. The same arguments give the same backbone on the same device with the same number of threads,
    interrupted or not: with a checkpoint it goes on from the last of every 25 steps. The global random state
    is left as it was. Raises TuningError, and DeviceMemoryError where the device does not hold a step.
    """
    pictures = items.pictures
    assert pictures is not None
    saved = Checkpoint(checkpoint, _identity(branch, items, targets, tuning, seed), (_STAGE,))
    steps = max(1, round(tuning.epochs * len(items) / tuning.batch))
    goal, scale, pieces = np.array(targets), loss_scale(device), 1
    chances = item_weights(np.unique(goal, return_inverse=True)[1], 1.0)
    if device.type == "cpu":
        keep_freed_memory()
    with _seeded(seed, device), _trainable(branch, tuning.what) as backbone_parameters:
        head = nn.Linear(branch.head.in_features, int(goal.max()) + 1)
        nn.init.zeros_(head.weight)
        both = nn.ModuleDict({"branch": branch, "head": head}).to(device)
        trained = [*backbone_parameters, *head.parameters()]
        optimiser = torch.optim.AdamW(
            [{"params": backbone_parameters}, {"params": list(head.parameters())}], weight_decay=_WEIGHT_DECAY
        )
        for number in range(saved.resume(_STAGE, both, optimiser) or 0, steps):
            # Every step has its own random state, so that a resumed run repeats an unbroken one.
            rng = np.random.default_rng([seed, 9, number])
            drawn = rng.choice(len(items), tuning.batch, p=chances)
            shown = as_images(pictures[drawn], device)
            mirrored = torch.from_numpy(rng.random(tuning.batch) < 0.5).to(device)
            shown = torch.where(mirrored[:, None, None, None], shown.flip(3), shown)
            for group, peak in zip(optimiser.param_groups, (tuning.rate, _HEAD_RATE), strict=True):
                group["lr"] = peak * one_cycle(number / steps)
            true = torch.from_numpy(goal[drawn]).to(device)
            pieces = as_memory_allows(
                partial(_gradients, branch, head, optimiser, shown, true, scale),
                pieces,
                rows=tuning.batch,
                items=tuning.batch,
                device=device,
            )
            if unscale([one.grad for one in trained if one.grad is not None], scale):
                nn.utils.clip_grad_norm_(trained, _MOST_NORM)
                optimiser.step()
            progress(number + 1, steps)
            if (number + 1) % _SAVE_EVERY == 0 or number + 1 == steps:
                saved.save(_STAGE, number + 1, both, optimiser)
    branch.cpu()


def _gradients(
    branch: PictureBranch,
    head: nn.Linear,
    optimiser: torch.optim.Optimizer,
    shown: Tensor,
    true: Tensor,
    scale: float,
    pieces: int,
) -> None:
    def features(some: Tensor) -> Tensor:
        with half_precision(some.device):
            return branch.features(some)

    optimiser.zero_grad(set_to_none=True)
    loss = F.cross_entropy(head(in_pieces(features, shown, pieces).float()), true)
    torch.autograd.backward(loss * scale)


def check(branch: PictureBranch, tuning: Tuning) -> None:
    """Raise TuningError where the branch's model cannot be tuned so. It stays as it is."""
    with _seeded(0, torch.device("cpu")), _trainable(branch, tuning.what):
        pass


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _trainable(branch: PictureBranch, what: str) -> Iterator[list[nn.Parameter]]:
    """Give the parameters that are to be trained; afterwards the backbone is a plain one, and frozen."""
    backbone = branch.backbone
    adapters = None
    if what == ADAPTERS:
        adapters = _with_adapters(branch)
        chosen = [one for one in backbone.parameters() if one.requires_grad]
    else:
        names = _last_blocks(branch, int(what.removeprefix("last-"))) if what != WHOLE else None
        chosen = [one for name, one in backbone.named_parameters() if names is None or name in names]
        for one in chosen:
            one.requires_grad_(True)
    try:
        yield chosen
    finally:
        if adapters is not None:
            adapters.merge_and_unload()
        branch.eval().requires_grad_(False)


def _last_blocks(branch: PictureBranch, count: int) -> set[str]:
    """Return the names of the parameters in the model's last blocks, with what follows these."""
    from timm.models import group_parameters  # it takes seconds, and most processes have no backbone

    name = branch.picture.backbone
    try:
        matcher: Any = branch.backbone.group_matcher
        blocks = group_parameters(branch.backbone, matcher(coarse=False))
    except AttributeError as error:
        raise TuningError(f"timm names no blocks of {name}: tune it whole, or by adapters") from error
    numbers = sorted(blocks)
    if count >= len(numbers):
        raise TuningError(f"{name} has {len(numbers) - 1} blocks: tune at most so many, or it whole")
    return {parameter for number in numbers[-count:] for parameter in blocks[number]}


def _with_adapters(branch: PictureBranch):  # type: ignore[no-untyped-def]  # peft's, which may not be there
    """Put an adapter beside each linear layer and each ungrouped convolution; return what merges them."""
    try:
        from peft import LoraConfig
        from peft.tuners.lora import LoraModel
    except ModuleNotFoundError as error:
        raise TuningError("adapters need peft: pip install -e '.[adapters]'") from error
    layers = [
        name
        for name, layer in branch.backbone.named_modules()
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1)
    ]
    names = "|".join(re.escape(name) for name in layers)
    config = LoraConfig(r=_RANK, lora_alpha=_ALPHA, target_modules=f"^({names})$")
    return LoraModel(branch.backbone, config, "default")


def _identity(
    branch: PictureBranch, items: LabelledCrops, targets: Sequence[int], tuning: Tuning, seed: int
) -> str:
    facts = [digest_of(branch), items.ids, list(targets), asdict(tuning), seed]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

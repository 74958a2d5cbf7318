"""The vote of a model on whole pictures in a benchmark, tuned and fitted as an update does it."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from detector.model.network import PictureBranch
from updater.benchmark.continual.setup import Progress, Setup
from updater.data.training_data import LabelledCrops
from updater.training import schemes
from updater.training.frozen import frozen_branch, frozen_rows
from updater.training.picture_vote import Vote, vote_beside
from updater.training.step import Learnt
from updater.training.tuning import tune


@dataclass(frozen=True)
class PictureVote:
    """A vote, and the tuned model that it is of; None where items have the features of a frozen one."""

    vote: Vote
    branch: PictureBranch | None
    device: torch.device

    def on(self, items: LabelledCrops) -> Tensor:
        """Return its logits for n items with picture features or pictures, float32 [n, K], on the CPU."""
        return self.vote.on(_seen(self.branch, items, self.device))


def tuned_branch(
    setup: Setup,
    train: LabelledCrops,
    classes: tuple[str, ...],
    seed: int,
    checkpoint: Path,
    progress: Progress,
    previous: PictureBranch | None = None,
) -> PictureBranch | None:
    """Train the setup's model further, from the previous one or its weights; None if it is frozen.

    train: what the network was trained on, of these classes. Raises TuningError.
    """
    picture, weights, tuning = setup.architecture.picture, setup.picture_from, setup.picture_tuning
    if picture is None or weights is None or tuning is None:
        return None
    branch = frozen_branch(picture, weights)
    if previous is not None:
        branch.load_state_dict(previous.state_dict())
    tune(
        branch,
        train,
        schemes.targets(train.families, classes, setup.options),
        tuning,
        seed=seed,
        device=setup.torch_device,
        checkpoint=checkpoint,
        progress=lambda *at: progress("picture tuning", *at),
    )
    return branch


def vote_of(
    learnt: Learnt,
    setup: Setup,
    train: LabelledCrops,
    calibration: LabelledCrops,
    logits: Tensor,
    branch: PictureBranch | None,
) -> PictureVote | None:
    """Fit it to what a network was trained on, and its share to calibration items; None without such a model.

    logits: float32 [n, K], the network's for these. branch: as `tuned_branch` gives it.
    """
    if setup.architecture.picture is None:
        return None
    device = setup.torch_device
    seen, held_back = (_seen(branch, items, device) for items in (train, calibration))
    vote = vote_beside(logits, seen, held_back, learnt.classes, setup.options)
    return PictureVote(vote, branch, device)


def _seen(branch: PictureBranch | None, items: LabelledCrops, device: torch.device) -> LabelledCrops:
    if branch is None or items.pictures is None:
        return items
    return replace(items, picture_features=frozen_rows(branch, items.pictures, device))

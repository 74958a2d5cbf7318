"""The picture branch of a candidate: the parent's backbone or release 0's, and a vote fitted anew."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from detector.network import Network
from detector.picture import PictureBranch
from updater.candidate.calibrate import output_of
from updater.candidate.plan import Plan
from updater.training.frozen import frozen_branch, frozen_rows
from updater.training.picture_vote import Vote, vote_beside
from updater.training_data import LabelledCrops

Progress = Callable[[str, int, int], None]


def with_picture_features(plan: Plan, kept: Path, progress: Progress) -> Plan:
    """Return the plan with what its frozen model makes of the pictures to train and to calibrate on.

    kept: the folder of what earlier updates computed. Raises WeightsError where release 0's weights are not
    those of the model.
    """
    if plan.architecture.picture is None:
        return plan
    branch = new_branch(plan)

    def seen(items: LabelledCrops, stage: str) -> LabelledCrops:
        assert items.pictures is not None
        rows = frozen_rows(branch, items.pictures, plan.device, kept, lambda *at: progress(stage, *at))
        return replace(items, picture_features=rows)

    splits = plan.splits
    train, calibration = seen(splits.train, "pictures"), seen(splits.calibration, "pictures held back")
    return replace(plan, splits=replace(splits, train=train, calibration=calibration))


def new_branch(plan: Plan) -> PictureBranch:
    """Return the plan's branch with its frozen backbone, and a head that says nothing yet.

    Raises WeightsError.
    """
    picture, parent = plan.architecture.picture, plan.parent
    assert picture is not None
    if plan.picture_from is not None:
        return frozen_branch(picture, plan.picture_from, len(plan.classes))
    assert parent is not None
    assert parent.branch is not None
    branch = PictureBranch(picture, len(plan.classes))
    branch.backbone.load_state_dict(parent.branch.backbone.state_dict())
    return branch


def branch_beside(plan: Plan, network: Network, progress: Progress) -> PictureBranch:
    """Return the plan's branch with a vote fitted to the training items, and its share to those held back.

    The items have picture features.
    """
    held_back = plan.splits.calibration
    logits = output_of(network, held_back, plan.device, "share of the vote", progress).logits
    vote = vote_beside(logits, plan.splits.train, held_back, plan.classes)
    branch = new_branch(plan)
    branch.head.load_state_dict({"weight": vote.weight, "bias": vote.bias})
    return branch


def vote_on(branch: PictureBranch | None, items: LabelledCrops) -> Tensor | None:
    """Return the branch's logits for items with picture features, float32 [n, K]; None without a branch."""
    if branch is None:
        return None
    return Vote(branch.head.weight.detach(), branch.head.bias.detach()).on(items)

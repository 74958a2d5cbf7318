"""The picture branch of a candidate: the parent's backbone or release 0's, and a vote fitted anew."""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from detector.model.network import Network, PictureBranch
from updater.candidate.calibrate import output_of
from updater.candidate.plan import Plan
from updater.data.training_data import LabelledCrops
from updater.progress import Progress
from updater.training.frozen import Vote, frozen_branch, frozen_rows, vote_beside


def with_picture_features(plan: Plan, branch: PictureBranch | None, kept: Path, progress: Progress) -> Plan:
    """Return the plan with what the branch's model makes of the pictures to train and to calibrate on.

    kept: the folder of what earlier updates computed.
    """
    if branch is None:
        return plan

    def seen(items: LabelledCrops, stage: str) -> LabelledCrops:
        assert items.pictures is not None
        rows = frozen_rows(branch, items.pictures, plan.device, kept, lambda *at: progress(stage, *at))
        return replace(items, picture_features=rows)

    splits = plan.splits
    train, calibration = seen(splits.train, "pictures"), seen(splits.calibration, "pictures held back")
    return replace(plan, splits=replace(splits, train=train, calibration=calibration))


def new_branch(plan: Plan) -> PictureBranch | None:
    """Return the plan's branch with a head that says nothing yet; None where the plan has no branch.

    Raises WeightsError where release 0's weights are not those of the model.
    """
    picture, parent = plan.architecture.picture, plan.parent
    if picture is None:
        return None
    if plan.picture_from is not None:
        return frozen_branch(picture, plan.picture_from, len(plan.classes))
    assert parent is not None
    assert parent.branch is not None
    branch = PictureBranch(picture, len(plan.classes))
    branch.backbone.load_state_dict(parent.branch.backbone.state_dict())
    return branch


def fit_head(plan: Plan, branch: PictureBranch, network: Network, progress: Progress) -> None:
    """Give the branch a vote fitted to the training items, with a share fitted to those held back.

    The items have the branch's picture features.
    """
    held_back = plan.splits.calibration
    logits = output_of(network, held_back, plan.device, "share of the vote", progress).logits
    vote = vote_beside(logits, plan.splits.train, held_back, plan.classes)
    branch.head.load_state_dict({"weight": vote.weight, "bias": vote.bias})


def vote_on(branch: PictureBranch | None, items: LabelledCrops) -> Tensor | None:
    """Return the branch's logits for items with picture features, float32 [n, K]; None without a branch."""
    if branch is None:
        return None
    return Vote(branch.head.weight.detach().cpu(), branch.head.bias.detach().cpu()).on(items)

"""The picture branch of a candidate: the parent's backbone or release 0's, and a vote fitted anew."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from detector.network import Network
from detector.picture import PictureBranch
from updater.candidate.calibrate import output_of
from updater.candidate.plan import Plan
from updater.measures import balanced_weights
from updater.training.picture_vote import fit_vote, picture_features, share_of_vote
from updater.training.weights import put_backbone
from updater.training_data import LabelledCrops

Progress = Callable[[str, int, int], None]


def new_branch(plan: Plan, network: Network, progress: Progress) -> PictureBranch:
    """Fit the vote to the training items, and its share beside the network to the calibration items.

    That one number is fitted where the gate is: neither the network nor the vote was trained on those items.
    Raises WeightsError where release 0's weights are not those of the model.
    """
    picture = plan.architecture.picture
    assert picture is not None
    branch = PictureBranch(picture, len(plan.classes))
    if plan.parent is not None:
        assert plan.parent.branch is not None
        branch.backbone.load_state_dict(plan.parent.branch.backbone.state_dict())
    elif plan.picture_from is not None:
        put_backbone(branch.backbone, picture.backbone, picture.side_px, plan.picture_from)
    train, held_back = plan.splits.train, plan.splits.calibration
    assert train.pictures is not None
    seen = picture_features(branch, train.pictures, plan.device, lambda *at: progress("pictures", *at))
    weight, bias = fit_vote(seen.numpy(), train.families, plan.classes)
    branch.head.load_state_dict({"weight": weight, "bias": bias})
    share = share_of_vote(
        output_of(network, held_back, plan.device, "share of the vote", progress).logits,
        vote_on(branch, held_back, plan.device),
        held_back.families,
        plan.classes,
        balanced_weights(np.array(held_back.families), np.array(held_back.groups)),
    )
    branch.head.load_state_dict({"weight": share * weight, "bias": share * bias})
    return branch.cpu()


def vote_on(branch: PictureBranch, items: LabelledCrops, device: torch.device) -> Tensor:
    """Return the branch's logits for whole items, float32 [n, K], on the CPU."""
    assert items.pictures is not None
    seen = picture_features(branch, items.pictures, device)
    with torch.no_grad():
        logits: Tensor = branch.cpu().head(seen)
    return logits

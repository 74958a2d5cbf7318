"""The vote of a model on whole pictures in a benchmark, fitted as an update fits it."""

from torch import Tensor

from updater.benchmark.setup import Setup
from updater.training.picture_vote import Vote, vote_beside
from updater.training.step import Learnt
from updater.training_data import LabelledCrops


def vote_of(
    learnt: Learnt, setup: Setup, train: LabelledCrops, calibration: LabelledCrops, logits: Tensor
) -> Vote | None:
    """Fit it to what a network was trained on, and its share to calibration items; None without such a model.

    logits: float32 [n, K], the network's for these.
    """
    if setup.architecture.picture is None:
        return None
    return vote_beside(logits, train, calibration, learnt.classes, setup.options)

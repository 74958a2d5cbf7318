"""What a distortion of a picture leaves on what is kept of it: its crops."""

from collections.abc import Sequence

import numpy as np

from updater.distortions.apply import seeds_of
from updater.distortions.distortion import Step
from updater.distortions.methods import DISTORTIONS
from updater.filters import Picture

_WHOLE_PX = 256
"""BW counts its blocks by so many whole pixels of the shorter side."""


def distort_crops(rng: np.random.Generator, crops: Picture, steps: Sequence[Step]) -> Picture:
    """Apply the steps in order to one item's crops, uint8 RGB [N, S, S, 3], by draws that all of them share.

    A crop stands in for the part of its picture: what draws for each place (noise, blocks) draws for each
    crop, H.264 codes each crop as a clip of one frame, filters mirror at its border, and blocks, of
    which a picture below 256 px gets none, lie as densely as on one of 256 px.
    """
    for step, seed in zip(steps, seeds_of(rng, steps), strict=True):
        own = np.random.default_rng(seed)
        if DISTORTIONS[step.name].rate_factors:
            crops = np.concatenate([_apply(own, crop[None], step) for crop in crops])
        else:
            crops = _apply(own, crops, step)
    return crops


def _apply(rng: np.random.Generator, crops: Picture, step: Step) -> Picture:
    apply, side = DISTORTIONS[step.name].apply, crops.shape[1]
    times = -(-_WHOLE_PX // side) if step.name == "BW" else 1
    whole = np.tile(crops, (1, times, times, 1)) if times > 1 else crops
    return apply(rng, whole, step.level)[:, :side, :side]

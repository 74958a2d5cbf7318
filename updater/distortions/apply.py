"""A mix at work on frames in memory, and on the maps that belong to them."""

from collections.abc import Sequence

import numpy as np

from updater.distortions.distortion import Step
from updater.distortions.methods import DISTORTIONS
from updater.filters import Picture

_SEEDS = 2**63


def seeds_of(rng: np.random.Generator, steps: Sequence[Step]) -> list[int]:
    """Draw what each step's own generator begins from: frames, maps and pieces of a clip then agree."""
    return [int(seed) for seed in rng.integers(_SEEDS, size=len(steps))]


def distort(rng: np.random.Generator, frames: Picture, steps: Sequence[Step]) -> Picture:
    """Apply the steps in order to one clip's frames, uint8 RGB [T, H, W, 3]; a picture is a clip of one.

    Nothing is coded between the steps: a file's distortion is, `updater/distortions/files.py`.
    """
    for step, seed in zip(steps, seeds_of(rng, steps), strict=True):
        frames = DISTORTIONS[step.name].apply(np.random.default_rng(seed), frames, step.level)
    return frames


def distort_with_maps(
    rng: np.random.Generator, frames: Picture, maps: Picture, steps: Sequence[Step]
) -> tuple[Picture, Picture]:
    """Apply the steps to frames as `distort` does, and move their maps, uint8 [T, H, W] (0..255), alike."""
    for step, seed in zip(steps, seeds_of(rng, steps), strict=True):
        distortion = DISTORTIONS[step.name]
        frames = distortion.apply(np.random.default_rng(seed), frames, step.level)
        if distortion.move:
            maps = distortion.move(np.random.default_rng(seed), maps, step.level)
    return frames, maps

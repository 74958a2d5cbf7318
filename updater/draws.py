"""Purposes of random numbers, and draws with unequal chances from very many items."""

from enum import Enum

import numpy as np
from numpy.typing import NDArray


class SeedPurpose(Enum):
    """Random numbers for one purpose: they stay the same whatever is drawn for another.

    A stream is its number beside the seed. Those of two rooms may share a number, as they were first drawn.
    """

    FORGED_ITEMS = (1, "outliers: which items pseudo-forgeries are made of")
    FORGERIES = (2, "outliers: how each of them is forged")
    BATCHES = (3, "training: the items of each step, and the changes to their crops")
    FRESH_FORGERIES = (4, "training: the pseudo-forgeries that are made for a step")
    POWER = (6, "candidate: the bootstrap of the power")
    ROBUSTNESS_ITEMS = (7, "candidate: in which order items are judged under distortions")
    ROBUSTNESS = (8, "candidate: how each item is distorted")
    LOCALIZER_BATCHES = (11, "localizer: the pictures of each step")
    LOCALIZER_CALIBRATION = (12, "localizer: the forgeries that it is calibrated on")
    CLIPS_TO_LEARN = (21, "scan: simulated clips to train on")
    CLIPS_HELD_BACK = (22, "scan: simulated clips that the threshold is set on")
    CLIPS_TO_TEST = (23, "scan: simulated clips to test on")
    CLIP_OF_PROBE = (24, "scan: the clip that proves the exported graph")
    VIDEOS_TO_LEARN = (25, "scan: forged stretches of real videos to train on")
    VIDEOS_TO_TEST = (26, "scan: forged stretches of real videos to test on")
    EXPERT_BATCHES = (31, "experts: the pictures of each step, and how they are augmented")
    BIAS_SPLIT = (5, "benchmark: the items that BiC holds back")
    AUGMIX_VERSIONS = (6, "benchmark: AugMix's versions of items")
    REGMIXUP = (7, "benchmark: RegMixup's pairs")
    OTHER_DISTORTIONS = (12, "benchmark: distortions of another method's clips")
    DEEPERFORENSICS_CLIPS = (13, "benchmark: our clips in DeeperForensics' layout")
    DEEPERFORENSICS_VARIANTS = (14, "benchmark: their distortions")
    LOCALIZER_PICTURES = (13, "benchmark: the pictures with masks that a localizer learns from")

    def of(self, seed: int, *place: int) -> tuple[int, ...]:
        """Return the seeds of the draws for a place in this stream, such as an item's number."""
        return (seed, self.value[0], *place)

    def generator(self, seed: int, *place: int) -> np.random.Generator:
        return np.random.default_rng(self.of(seed, *place))


def cumulative(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running sums of chances, float64 [n], the last of which is 1."""
    sums = chances.cumsum()
    return np.asarray(sums / sums[-1])


def draw(rng: np.random.Generator, sums: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Draw from 0..n-1 with these running sums, int64 [count]: what rng.choice(n, count, p=chances) draws."""
    return np.asarray(sums.searchsorted(rng.random(count), "right"), np.int64)

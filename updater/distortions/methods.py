"""The distortions by name, and mixes of them: drawn, and applied to frames, to maps and to crops.

To add a distortion is a function in its group's file, and a line in the table at that file's end.
"""

from collections.abc import Sequence

import numpy as np

from updater.distortions.capture import CAPTURE
from updater.distortions.colour import COLOUR
from updater.distortions.compression import COMPRESSION
from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.distortions.distortion import LEVELS, DistortionError, Step
from updater.distortions.transmission import TRANSMISSION
from updater.filters import Picture

FORGERYNET = COMPRESSION | TRANSMISSION | CAPTURE | COLOUR
"""Our 36 for ForgeryNet, whose own were never published."""
DISTORTIONS = DEEPERFORENSICS | FORGERYNET

AUGMENTATIONS = {
    "weak": (),
    "normal": ("jpeg", "rescale", "gaussian_blur", "brightness", "gaussian_noise"),
    "enhanced": tuple(FORGERYNET),
}
"""What training with weak, normal or enhanced augmentation may distort by."""

MIXED = (2, 3, 4)
"""How many distortions a mix may have."""
SHARE_OF_MIXES, SHARE_OF_SINGLES = 0.98, 0.01
"""Of ForgeryNet's files; the rest have none."""

_SEEDS = 2**63
_WHOLE_PX = 256
"""BW counts its blocks by so many whole pixels of the shorter side."""


def step(name: str, level: int) -> Step:
    """Name a distortion at a level. Raises DistortionError where either is none."""
    if name not in DISTORTIONS:
        choices = f"{', '.join(DEEPERFORENSICS)}; {', '.join(FORGERYNET)}"
        raise DistortionError(f"{name} is no distortion: choose of {choices}")
    if level not in LEVELS:
        raise DistortionError(f"{level} is no level of {name}: they are {LEVELS[0]} to {LEVELS[-1]}")
    return Step(name, level)


def draw_steps(
    rng: np.random.Generator,
    count: int = 1,
    level: int | None = None,
    names: Sequence[str] = tuple(DEEPERFORENSICS),
) -> tuple[Step, ...]:
    """Draw so many different distortions, in the order drawn, each at `level` or at a level of its own.

    All names and levels are equally likely, as in the published metas. Raises DistortionError where there
    are fewer names than asked for.
    """
    if count > len(names):
        raise DistortionError(f"a mix of {count} cannot be drawn from {len(names)} distortions")
    chosen = [names[place] for place in rng.choice(len(names), count, replace=False)] if count else []
    return tuple(step(name, int(rng.choice(LEVELS)) if level is None else level) for name in chosen)


def drawn_by_the_law_of_files(rng: np.random.Generator, names: Sequence[str]) -> tuple[Step, ...]:
    """Draw the distortions of one of ForgeryNet's files: 98 % a mix of 2 to 4, 1 % a single one, 1 % none.

    A mix has no more than there are names. Without names there is none.
    """
    share = rng.random()
    count = int(share < SHARE_OF_MIXES + SHARE_OF_SINGLES)
    if share < SHARE_OF_MIXES:
        count = int(rng.choice(MIXED))
    return draw_steps(rng, min(count, len(names)), names=names)


def seeds_of(rng: np.random.Generator, steps: Sequence[Step]) -> list[int]:
    """Draw the seed of each step's own generator: frames, maps and pieces of a clip then agree."""
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


def distort_crops(rng: np.random.Generator, crops: Picture, steps: Sequence[Step]) -> Picture:
    """Apply the steps in order to one item's crops, uint8 RGB [N, S, S, 3], by draws that all of them share.

    A crop stands in for the part of its picture: what draws for each place (noise, blocks) draws for each
    crop, H.264 codes each crop as a clip of one frame, filters mirror at its border, and blocks, of
    which a picture below 256 px gets none, lie as densely as on one of 256 px.
    """
    for step, seed in zip(steps, seeds_of(rng, steps), strict=True):
        own = np.random.default_rng(seed)
        if DISTORTIONS[step.name].rate_factors:
            crops = np.concatenate([_on_crops(own, crop[None], step) for crop in crops])
        else:
            crops = _on_crops(own, crops, step)
    return crops


def _on_crops(rng: np.random.Generator, crops: Picture, step: Step) -> Picture:
    apply, side = DISTORTIONS[step.name].apply, crops.shape[1]
    times = -(-_WHOLE_PX // side) if step.name == "BW" else 1
    whole = np.tile(crops, (1, times, times, 1)) if times > 1 else crops
    return apply(rng, whole, step.level)[:, :side, :side]

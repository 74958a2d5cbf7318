"""What a network on pictures is shown: one crop, as it is trained and as it is tested."""

import numpy as np

from ingest.sandbox.crops import cut, grid
from updater.benchmark.forgerynet.choices import Augmentation, Choices, Input
from updater.benchmark.forgerynet.sights import Sight, cut_to, picture_of, resized
from updater.distortions.distortion import Step
from updater.distortions.methods import AUGMENTATIONS, distort, drawn_by_the_law_of_files
from updater.filters import Picture

LARGEST = 8 / 7
"""the most that a picture's side is scaled to, of the side that is then cut out"""
_COVERING = 9
"""most crops of a picture that is to be covered"""


def training_crop(sight: Sight, choices: Choices, px: int, rng: np.random.Generator) -> Picture:
    """Return uint8 RGB [px, px, 3]: perturbed, scaled to px … 8/7 px, cut and mirrored, all by chance.

    Of the input native nothing is scaled; a picture that is smaller is mirrored beyond its edges.
    """
    picture = cut_to(sight.box, picture_of(sight.entry.path))
    picture = distort(rng, picture[None], perturbation(rng, choices.augmentation))[0]
    (crop,) = scaled_and_cut(picture[None], choices.input, px, rng)
    return np.asarray(crop)


def scaled_and_cut(frames: Picture, kind: Input, px: int, rng: np.random.Generator) -> Picture:
    """Return frames, uint8 RGB [T, H, W, 3], as [T, px, px, 3]: all scaled, cut and mirrored by one draw."""
    if kind == "face":
        side = int(rng.integers(px, round(LARGEST * px) + 1))
        frames = np.stack([resized(one, side, side) for one in frames])
    height, width = frames.shape[1:3]
    corner = int(rng.integers(max(0, width - px) + 1)), int(rng.integers(max(0, height - px) + 1))
    crops = np.concatenate([cut(one, (corner,), px) for one in frames])
    return np.ascontiguousarray(crops[:, :, ::-1]) if rng.random() < 0.5 else crops


def test_crops(sight: Sight, choices: Choices, px: int) -> Picture:
    """Return uint8 RGB [n, px, px, 3]: what the answer is the mean of.

    Of the input face, all that is looked at, scaled; of native the middle, or what covers the picture.
    """
    picture = cut_to(sight.box, picture_of(sight.entry.path))
    if choices.input == "face":
        return resized(picture, px, px)[None]
    height, width = picture.shape[:2]
    return cut(picture, grid(width, height, px, _COVERING if choices.crops == "multi" else 1), px)


def perturbation(rng: np.random.Generator, augmentation: Augmentation) -> tuple[Step, ...]:
    """Draw what a picture or a clip is perturbed by: nothing, or by the law of ForgeryNet's files."""
    names = AUGMENTATIONS[augmentation]
    return drawn_by_the_law_of_files(rng, names) if names else ()

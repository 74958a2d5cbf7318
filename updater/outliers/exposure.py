"""Pseudo-forged items for a learner: what the class of forgeries of no known family is trained on."""

import io
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from PIL import Image

from updater.outliers.pseudo_forgeries import pseudo_forge
from updater.training_data import LabelledCrops

_JPEG_QUALITIES = (80, 97)


def expose(
    items: LabelledCrops,
    count: int,
    without: frozenset[str],
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LabelledCrops:
    """Return `count` pseudo-forgeries of `items`, drawn with equal weight for each class.

    All crops of one item get the same chain of operations. Each is compressed again afterwards, as
    a forged photograph is when it is saved. `without` are the kinds of operations left out. The
    same seed gives the same crops, whatever is drawn before or after.
    """
    families = np.array(items.families)
    _, of = np.unique(families, return_inverse=True)
    weight = 1 / np.bincount(of)[of]
    draws = np.random.default_rng([seed, 1]).choice(len(items), count, p=weight / weight.sum())
    chosen = items.take(int(i) for i in draws)
    crops = np.empty_like(chosen.crops)
    for number in range(count):
        rng = np.random.default_rng([seed, 2, number])
        rows = slice(chosen.starts[number], chosen.starts[number + 1])
        quality = int(rng.integers(*_JPEG_QUALITIES))
        forged = pseudo_forge(rng, chosen.crops[rows], without)
        crops[rows] = [_compressed(crop, quality) for crop in forged]
        progress(number + 1, count)
    return LabelledCrops(
        ids=tuple(f"pseudo-{number}" for number in range(count)),
        families=("pseudo",) * count,
        sources=chosen.sources,
        groups=chosen.groups,
        crops=crops,
        starts=chosen.starts,
    )


def _compressed(image: npt.NDArray[np.uint8], quality: int) -> npt.NDArray[np.uint8]:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))

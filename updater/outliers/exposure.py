"""Pseudo-forged items for a learner: training items of the class of forgeries of no known family."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from PIL import Image

from updater import draws
from updater.data.stored_rows import collect_rows
from updater.data.training_data import LabelledCrops
from updater.outliers.pseudo_forgeries import pseudo_forge
from updater.progress import Steps, no_steps

_JPEG_QUALITIES = (80, 97)
SAVED_KIND = "compression"


@dataclass(frozen=True)
class Exposure:
    """Where pseudo-forgeries come from: the items that are forged, and the kinds of operations left out."""

    items: LabelledCrops
    without: frozenset[str]

    @cached_property
    def _chances(self) -> npt.NDArray[np.float64]:
        _, of = np.unique(np.array(self.items.families), return_inverse=True)
        weight = 1 / np.bincount(of)[of]
        return draws.cumulative(weight / weight.sum())

    def sources(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """Draw the items to forge, int64 [count], with equal weight for each class."""
        return draws.draw(rng, self._chances, count)

    def anew(self, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
        """Return a crop of a fresh pseudo-forgery, uint8 [1, S, S, 3]: source, chain and strengths drawn."""
        source = int(self.sources(rng, 1)[0])
        first, end = int(self.items.starts[source]), int(self.items.starts[source + 1])
        rows = first + rng.permutation(end - first)[:1]
        return forge_crops(rng, self.items.crops[rows], self.without)


def expose(
    items: LabelledCrops, count: int, without: frozenset[str], seed: int, progress: Steps = no_steps
) -> LabelledCrops:
    """Return `count` pseudo-forgeries of `items`, drawn with equal weight for each class.

    All crops of one item get the same chain of operations; its whole picture, which
    shows nothing of it, stays. `without` are the kinds of operations left
    out. The same seed gives the same crops, whatever is drawn before or after.
    """
    chosen = items.take(
        Exposure(items, without).sources(draws.SeedPurpose.FORGED_ITEMS.generator(seed), count)
    )

    def forgeries() -> Iterator[npt.NDArray[np.uint8]]:
        for number in range(count):
            rows = slice(chosen.starts[number], chosen.starts[number + 1])
            yield forge_crops(
                draws.SeedPurpose.FORGERIES.generator(seed, number), chosen.crops[rows], without
            )
            progress(number + 1, count)

    return LabelledCrops(
        ids=tuple(f"pseudo-{number}" for number in range(count)),
        families=("pseudo",) * count,
        sources=chosen.sources,
        groups=chosen.groups,
        crops=collect_rows(forgeries()) if count else chosen.crops,
        starts=chosen.starts,
        pictures=chosen.pictures,
    )


def forge_crops(
    rng: np.random.Generator, crops: npt.NDArray[np.uint8], without: frozenset[str]
) -> npt.NDArray[np.uint8]:
    """Tamper alike with each crop, uint8 [N, S, S, 3], then save it as a forged photograph is saved.

    A crop comes out of a file, so that saving it is its second compression, on a grid of its own: the very
    trace of a recompressed forgery, if a faint one. So it is left undone where "compression" is left out.
    """
    quality = int(rng.integers(*_JPEG_QUALITIES))
    tampered = pseudo_forge(rng, crops, without)
    if SAVED_KIND in without:
        return tampered
    return np.stack([compress_jpeg(crop, quality) for crop in tampered])


def compress_jpeg(image: npt.NDArray[np.uint8], quality: int) -> npt.NDArray[np.uint8]:
    """Return uint8 [S, S, 3] as it comes back from a JPEG of that quality."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file, formats=("JPEG",)))

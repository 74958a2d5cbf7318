"""Pictures with the truth of where they are forged, as the spatial task has them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import JsonValue

from updater.benchmark.forgerynet.sights import Sight, cut_to, picture_of
from updater.data.layouts.listed import Tally
from updater.filters import Picture

Map = NDArray[np.float32]


@dataclass(frozen=True)
class Shown:
    """A picture, and the file of its truth; None of a real one, which is forged nowhere."""

    sight: Sight
    truth: Path | None

    def pixels(self) -> Picture:
        """Return the part that is looked at, uint8 RGB [H, W, 3]."""
        return cut_to(self.sight.box, picture_of(self.sight.entry.path))

    def mask(self, height: int, width: int) -> Map:
        """Return how much of each of its pixels is forged, float32 [height, width] in 0..1."""
        if self.truth is None:
            return np.zeros((height, width), np.float32)
        with Image.open(self.truth) as image:
            grey = np.asarray(image.convert("L"))
        return cut_to(self.sight.box, grey[..., None])[..., 0].astype(np.float32) / np.float32(255)


@dataclass(frozen=True)
class Mapped:
    """What was said of some of the test pictures, by one network and its threshold."""

    pictures: tuple[int, ...]
    """their numbers among the test pictures"""
    said: tuple[Map, ...]
    true: tuple[Map, ...]
    """of the size of what was said"""
    threshold: float
    about: dict[str, JsonValue]


def with_truth(sights: Sequence[Sight], tally: Tally) -> list[Shown]:
    """Return the pictures whose truth is known: reals, and forgeries with a map of their own size.

    Others are left out and counted.
    """
    found = []
    for sight in sights:
        entry = sight.entry
        truth = entry.masks[0] if entry.masks else None
        if not entry.label:
            found.append(Shown(sight, None))
        elif truth is None:
            tally.add("forged pictures are left out, for where they are forged is not known", entry.path)
        elif (wrong := _wrong(truth, entry.path)) is not None:
            tally.add(wrong, truth)
        else:
            found.append(Shown(sight, truth))
    return found


def _wrong(truth: Path, picture: Path) -> str | None:
    try:
        with Image.open(truth) as one, Image.open(picture) as other:
            same = one.size == other.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return "maps are no pictures, and their forgeries are left out"
    return None if same else "maps are of another size than their pictures, which are left out"

"""How crops were compressed, found from their pixels, and the same done to others.

A JPEG that is saved again with its own tables on its own grid hardly changes: at that quality the difference
dips (Farid 2009, "Exposing digital forgeries from JPEG ghosts").
"""

import io
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_QUALITIES = range(60, 100)
_CHROMA = (2, 0)
_REACH = 3
_DIP = 0.75


class Saved(NamedTuple):
    """How a JPEG was saved: quality as libjpeg scales its tables, and chroma at half size (2) or not (0)."""

    quality: int
    subsampling: int


def saved_as(crop: NDArray[np.uint8]) -> Saved | None:
    """Return how the file of a crop, uint8 [S, S, 3], was saved; None where nothing shows.

    Nothing shows of a file without loss, of tables that are not libjpeg's, and of a crop that does not lie
    on the file's grid of 8 px.
    """
    levels = crop.astype(np.int16)
    found: tuple[float, Saved] | None = None
    for subsampling in _CHROMA:
        changes = [
            float(np.abs(save(crop, Saved(quality, subsampling)).astype(np.int16) - levels).mean())
            for quality in _QUALITIES
        ]
        for place in range(_REACH, len(changes) - _REACH):
            around = (changes[place - _REACH] + changes[place + _REACH]) / 2 + 1e-3
            dip = changes[place] / around
            if dip < _DIP and (found is None or dip < found[0]):
                found = dip, Saved(_QUALITIES[place], subsampling)
    return None if found is None else found[1]


def save(crop: NDArray[np.uint8], how: Saved) -> NDArray[np.uint8]:
    """Return a crop, uint8 [S, S, 3], as it comes back from a JPEG."""
    file = io.BytesIO()
    Image.fromarray(crop).save(file, "JPEG", quality=how.quality, subsampling=how.subsampling)
    return np.asarray(Image.open(file))

"""Other looks of a whole picture, which say nothing of where it is forged: variety out of few pictures.

Each change is the same for every pixel of a picture, forged or not, so that what is known of its cells stays
true. A localizer that sees them takes neither colours nor contrast nor grain for a forgery.
"""

import numpy as np

from updater.filters import Picture, to_picture

NOISE_KIND, TONE_KIND = "noise", "tone"
_EXCHANGED_SHARE, _GREY_SHARE, _TONE_SHARE, _NOISE_SHARE = 0.5, 0.15, 0.5, 0.3
_CONTRAST = (0.5, 1.2)
_NOISE = (0.3, 3.0)
"""standard deviation, in levels"""


def looked_otherwise(rng: np.random.Generator, crops: Picture, without: frozenset[str]) -> Picture:
    """Return one picture's crops, uint8 [N, S, S, 3], with other colours, contrast and grain, each by chance.

    Colours are exchanged or taken away; contrast is 0.5 to 1.2 of what it was; noise of up to 3 levels comes
    on top. Neither noise nor tone where that kind is in `without`.
    """
    if rng.random() < _EXCHANGED_SHARE:
        crops = crops[..., rng.permutation(3)]
    if rng.random() < _GREY_SHARE:
        crops = np.repeat(to_picture(crops.mean(3, keepdims=True, dtype=np.float32)), 3, 3)
    if TONE_KIND not in without and rng.random() < _TONE_SHARE:
        crops = _toned(rng, crops)
    if NOISE_KIND not in without and rng.random() < _NOISE_SHARE:
        channels = 3 if rng.random() < 0.5 else 1
        grain = rng.standard_normal((*crops.shape[:3], channels), dtype=np.float32)
        crops = to_picture(crops + np.float32(rng.uniform(*_NOISE)) * grain)
    return crops


def _toned(rng: np.random.Generator, crops: Picture) -> Picture:
    contrast = rng.uniform(*_CONTRAST)
    # What is lost at the ends of the scale is lost at both alike; where there is room, it lies anywhere.
    darkest = rng.uniform(0, 255 * (1 - contrast)) if contrast < 1 else 127.5 * (1 - contrast)
    levels = to_picture(np.arange(256, dtype=np.float32) * np.float32(contrast) + np.float32(darkest))
    toned: Picture = levels[crops]
    return toned

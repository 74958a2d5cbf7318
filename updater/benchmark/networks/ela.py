"""Error level analysis: what a picture loses when it is saved as a JPEG once more.

Krawetz 2007, "A picture's worth". Quality and gain are ours, for the paper gives none.
"""

import io

import numpy as np
from PIL import Image

from updater.filters import Picture

QUALITY, GAIN = 90, 15


def levels(picture: Picture) -> Picture:
    """Return the absolute difference of uint8 RGB [H, W, 3] to its JPEG, times 15 and clipped, uint8."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=QUALITY)
    again = np.asarray(Image.open(buffer), np.int16)
    return np.asarray(np.clip(GAIN * np.abs(picture.astype(np.int16) - again), 0, 255), np.uint8)

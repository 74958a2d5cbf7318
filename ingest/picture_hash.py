"""A perceptual hash: 256 bits that a picture keeps when it is saved again, resized, mirrored or trimmed.

The bits are the signs of the 16 × 16 lowest coefficients of a discrete cosine transform of a grey copy of
64 × 64 px. PDQ ("The TMK+PDQF Video-Hashing Algorithm and the PDQ Image-Hashing Algorithm", Facebook 2019)
takes the same coefficients and compares them with their median. By its sign a coefficient of a mirrored
picture is either the same or its opposite, so that the mirrored picture's hash needs no second transform.

A trim moves all that is in the picture. So a picture has two hashes, its own and that of its inner part: what
was trimmed evenly is like the inner part of the whole.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

HASH_BYTES = 32
# What is left out at each side of the picture, as a share of it: nothing, and for the inner part.
INSETS = (0.0, 0.05)
# The hashes of one picture, that of the whole first.
PICTURE_BYTES = HASH_BYTES * len(INSETS)

_SIDE_PX, _LOWEST = 64, 16
_ROWS, _REDUCED_PX = 512, 256
_LEAST_GREY_LEVELS = 2.0
_LEAST_SHARE = 0.5

_frequency, _at = np.mgrid[:_LOWEST, :_SIDE_PX]
_DCT = np.cos(np.pi * _frequency * (2 * _at + 1) / (2 * _SIDE_PX)) * np.sqrt(2 / _SIDE_PX)
_DCT[0] /= np.sqrt(2)


def picture_hashes(picture: NDArray[np.uint8]) -> bytes:
    """Return the PICTURE_BYTES of a picture, uint8 RGB (height, width, 3); none where it is nearly flat.

    Flat are plain areas and plain gradients: fewer than half of their coefficients (orthonormal transform)
    reach 2 grey levels, so that most signs are those of rounding, the same for all such pictures.
    """
    # Every row of a large picture costs more than the rest, and tells nothing more of so low frequencies.
    image = Image.fromarray(np.ascontiguousarray(picture[:: max(1, len(picture) // _ROWS)]))
    width, height = (max(1, px // _REDUCED_PX) for px in image.size)
    grey = image.reduce((width, height)).convert("L")
    whole, *inner = (_spectrum(grey, inset) for inset in INSETS)
    if (np.abs(whole) >= _LEAST_GREY_LEVELS).mean() < _LEAST_SHARE:
        return b""
    return b"".join(np.packbits(spectrum > 0).tobytes() for spectrum in (whole, *inner))


def mirror_hashes(hashes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the hashes, (n, HASH_BYTES), of the same pictures with left and right exchanged."""
    # The signs of the odd horizontal frequencies, every second of a row.
    return hashes ^ np.uint8(0b01010101)


def _spectrum(grey: Image.Image, inset: float) -> NDArray[np.float64]:
    """Return the lowest coefficients of what lies within, (vertical, horizontal), in grey levels."""
    width, height = grey.size
    box = (inset * width, inset * height, (1 - inset) * width, (1 - inset) * height)
    small = grey.resize((_SIDE_PX, _SIDE_PX), Image.Resampling.BILINEAR, box)
    spectrum: NDArray[np.float64] = _DCT @ np.asarray(small, np.float64) @ _DCT.T
    return spectrum

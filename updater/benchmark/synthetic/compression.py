"""The last step of every medium, real or forged alike: its file.

A forgery that smooths makes files small and one that sharpens makes them large. So that neither the size nor
the quality gives it away, the forged picture is written at the quality whose size lies between its own and
that of the picture it was made from (both at the quality that was drawn): each keeps a part of the
difference, and the wide spread of both hides it.
"""

import io

import numpy as np
from PIL import Image

from updater.filters import Picture

QUALITIES = (80, 97)
LOWEST, HIGHEST = 74, 98
WEBP_SHARE = 0.04


def write(rng: np.random.Generator, source: Picture, picture: Picture) -> tuple[bytes, str]:
    """The file's bytes and its extension ("jpg" or "webp").

    `source` is the picture before it was forged; of a real medium it is the picture itself.
    """
    form = "WEBP" if rng.random() < WEBP_SHARE else "JPEG"
    drawn = int(rng.integers(QUALITIES[0], QUALITIES[1] + 1))
    data = _encode(picture, form, drawn)
    if picture is not source:
        data = _compensated(data, len(_encode(source, form, drawn)), picture, form, drawn)
    return data, "webp" if form == "WEBP" else "jpg"


def _compensated(data: bytes, source_bytes: int, picture: Picture, form: str, drawn: int) -> bytes:
    wanted = 0.2 * np.log(len(data)) + 0.8 * np.log(source_bytes)
    direction = 1 if wanted > np.log(len(data)) else -1
    quality, best = drawn, data
    while LOWEST < quality < HIGHEST:
        quality += direction
        candidate = _encode(picture, form, quality)
        if abs(np.log(len(candidate)) - wanted) >= abs(np.log(len(best)) - wanted):
            return best
        best = candidate
    return best


def _encode(picture: Picture, form: str, quality: int) -> bytes:
    buffer = io.BytesIO()
    if form == "WEBP":
        Image.fromarray(picture).save(buffer, form, quality=quality, method=1)
    else:
        Image.fromarray(picture).save(buffer, form, quality=quality)
    return buffer.getvalue()

"""Drawn pictures, and the ways in which a picture comes again."""

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from ingest.picture_hash import picture_hashes


def drawn(seed: int, width: int = 240, height: int = 200) -> Image.Image:
    """Return a picture of that seed alone, RGB, with something at every scale down to a tenth of it."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def hashes_of(picture: Image.Image) -> bytes:
    """Return a picture's hashes."""
    return picture_hashes(np.asarray(picture))


def _saved(container: str, **options: Any) -> Callable[[Image.Image], Image.Image]:
    def again(picture: Image.Image) -> Image.Image:
        file = io.BytesIO()
        picture.save(file, container, **options)
        return Image.open(file).convert("RGB")

    return again


def _resized(scale: float) -> Callable[[Image.Image], Image.Image]:
    return lambda picture: picture.resize((round(scale * picture.width), round(scale * picture.height)))


COPIES: Mapping[str, Callable[[Image.Image], Image.Image]] = {
    **{f"JPEG {quality}": _saved("JPEG", quality=quality) for quality in (95, 85, 70)},
    "WebP": _saved("WEBP", quality=80),
    "half the size": _resized(0.5),
    "twice the size": _resized(2),
    "mirrored": ImageOps.mirror,
    "trimmed by 3 px": lambda picture: ImageOps.crop(picture, 3),
    "trimmed at one corner": lambda picture: ImageOps.crop(picture, (3, 3, 0, 0)),
    "trimmed by a twentieth": lambda picture: ImageOps.crop(picture, (12, 10)),
    "all of it": lambda picture: _saved("JPEG", quality=70)(
        _resized(0.7)(ImageOps.mirror(ImageOps.crop(picture, 3)))
    ),
}

"""Drawn pictures and their hashes."""

import numpy as np
from PIL import Image

from ingest.picture_hash import picture_hashes


def drawn(seed: int, width: int = 240, height: int = 200) -> Image.Image:
    """Return a picture of that seed alone, RGB, with something at every scale down to a tenth of it."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def hashes_of(picture: Image.Image) -> bytes:
    return picture_hashes(np.asarray(picture))

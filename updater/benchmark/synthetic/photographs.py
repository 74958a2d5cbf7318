"""True photographs at native resolution: pieces of those that scikit-image and scikit-learn carry.

A photograph belongs wholly to one split. Pieces are cut on a grid of 16 pixels: some of the photographs were
JPEG files once, and a piece cut elsewhere would carry a misaligned block grid, which is what a forgery family
leaves.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
import skimage
import sklearn
from PIL import Image

from updater.filters import Picture

_SKIMAGE = Path(skimage.__file__).parent / "data"
_SKLEARN = Path(sklearn.__file__).parent / "datasets" / "images"

# The two views of the motorcycle show one scene, so only one of them is here. What is no everyday picture (a
# microscope, two telescopes, the ground of an eye, a rocket far away) is for training.
PHOTOGRAPHS: dict[str, tuple[Path, ...]] = {
    "train": (
        _SKIMAGE / "astronaut.png",
        _SKIMAGE / "brick.png",
        _SKIMAGE / "coins.png",
        _SKIMAGE / "grass.png",
        _SKIMAGE / "hubble_deep_field.jpg",
        _SKIMAGE / "ihc.png",
        _SKIMAGE / "moon.png",
        _SKIMAGE / "retina.jpg",
        _SKIMAGE / "rocket.jpg",
        _SKLEARN / "flower.jpg",
    ),
    "stream": (
        _SKIMAGE / "camera.png",
        _SKIMAGE / "coffee.png",
        _SKIMAGE / "motorcycle_left.png",
    ),
    "after": (
        _SKIMAGE / "chelsea.png",
        _SKIMAGE / "gravel.png",
        _SKLEARN / "china.jpg",
    ),
}
"""Split → files. A split's media show its own photographs and no other's."""

GRID_PX = 16


@lru_cache(maxsize=32)
def _pixels(path: Path) -> Picture:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def piece(rng: np.random.Generator, split: str, height: int, width: int) -> tuple[str, Picture]:
    """The group of one of the split's photographs and a random piece of it, uint8 [height, width, 3]."""
    paths = PHOTOGRAPHS[split]
    path = paths[int(rng.integers(len(paths)))]
    pixels = _pixels(path)
    top = GRID_PX * int(rng.integers((pixels.shape[0] - height) // GRID_PX + 1))
    left = GRID_PX * int(rng.integers((pixels.shape[1] - width) // GRID_PX + 1))
    return f"photo-{path.stem}", pixels[top : top + height, left : left + width]

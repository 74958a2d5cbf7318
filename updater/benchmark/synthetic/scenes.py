"""Subjects of photographs: scenes rendered in linear light, and pieces of true photographs.

A scene is a ground and a sky, both textured, with shapes in front that cover one another, each with its own
surface and shading. Fractal textures follow the 1/f amplitude law of natural images (Field 1987).

The photographs are those that scikit-image and scikit-learn carry, at native resolution. One belongs wholly
to one split. Pieces are cut on a grid of 16 pixels: some of the photographs were JPEG files once, and a piece
cut elsewhere would carry a misaligned block grid, which is what a forgery family leaves.
"""

from functools import lru_cache
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import skimage
from numpy.typing import NDArray
from PIL import Image
from scipy import fft

from updater.filters import Picture

Light = NDArray[np.float32]
"""Linear light as planes [3, height, width]: several times faster than interleaved colours."""

# Reflectances of things that photographs are full of; every use is varied around them.
_MATERIALS = np.array(
    [
        (0.80, 0.79, 0.76),  # plaster
        (0.34, 0.33, 0.31),  # concrete
        (0.04, 0.04, 0.045),  # asphalt
        (0.40, 0.13, 0.08),  # brick
        (0.28, 0.17, 0.09),  # wood
        (0.50, 0.40, 0.26),  # sand
        (0.15, 0.10, 0.06),  # earth
        (0.07, 0.17, 0.04),  # leaves
        (0.20, 0.30, 0.07),  # grass
        (0.07, 0.17, 0.25),  # water
        (0.26, 0.45, 0.80),  # clear sky
        (0.60, 0.66, 0.74),  # hazy sky
        (0.55, 0.34, 0.25),  # skin
        (0.62, 0.06, 0.05),  # red paint
        (0.80, 0.58, 0.08),  # yellow paint
        (0.06, 0.12, 0.45),  # blue paint
        (0.45, 0.10, 0.32),  # heather
        (0.15, 0.45, 0.42),  # copper green
    ],
    np.float32,
)


def render(rng: np.random.Generator, height: int, width: int) -> Light:
    """A scene [3, height, width], linear light, 1 = the white of the exposure (highlights may exceed it)."""
    textures = _textures(rng, height, width)
    y = np.arange(height, dtype=np.float32)[:, None]
    x = np.arange(width, dtype=np.float32)[None]
    scene = _surroundings(rng, textures, y, x)
    sizes_px = np.exp(rng.uniform(np.log(6), np.log(80), int(rng.integers(2, 27))))
    # Large things first, so that they do not hide all small ones.
    for size_px in np.sort(sizes_px)[::-1]:
        _paint(rng, scene, textures, float(size_px))
    across, down = rng.uniform(-0.3, 0.3, 2)
    light = 1 + float(across) * (x / width - 0.5) + float(down) * (y / height - 0.5) + 0.1 * textures[1]
    scene *= np.maximum(light, 0.2)
    scene *= rng.uniform(0.14, 0.32) / max(float(scene.mean()), 1e-3)
    return scene


@lru_cache(maxsize=32)
def _frequencies(height: int, width: int) -> tuple[Light, Light]:
    """Squares of the spatial frequencies, cycles a pixel: [height, 1] and [1, width]."""
    down = fft.fftfreq(height).astype(np.float32)[:, None] ** 2
    across = fft.fftfreq(width).astype(np.float32)[None] ** 2
    return down, across


def _textures(rng: np.random.Generator, height: int, width: int) -> Light:
    """Four fractal planes [4, height, width], mean 0, deviation 1: two even ones, two with a grain."""
    down, across = _frequencies(height, width)
    planes = np.empty((4, height, width), np.float32)
    for first, slope, stretch in (
        (0, rng.uniform(1.2, 1.8), 1.0),
        (2, rng.uniform(0.8, 1.3), float(np.exp(rng.uniform(-2.2, 2.2)))),
    ):
        power = down * stretch + across / stretch
        power[0, 0] = 1
        amplitude = np.exp(np.log(power) * (-slope / 2))
        amplitude[0, 0] = 0
        # Uniform numbers do: the transform's sums make them Gaussian, and they cost a quarter. A mean
        # left in them would be one bright corner.
        white = (rng.random((height, width, 2), dtype=np.float32) - 0.5).view(np.complex64)[..., 0]
        # The real and the imaginary part of one complex transform are two independent planes.
        field = fft.ifft2(white * amplitude, overwrite_x=True)
        planes[first], planes[first + 1] = field.real, field.imag
    planes /= planes.std(axis=(1, 2), keepdims=True)
    return planes


def _colour(rng: np.random.Generator) -> Light:
    """A reflectance [3, 1, 1]: one of the materials, brighter or darker, a little off in hue."""
    material = _MATERIALS[int(rng.integers(len(_MATERIALS)))]
    faded = material + rng.uniform(0, 0.6) * (material.mean() - material)
    varied = faded * np.exp(rng.normal(0, 0.3) + rng.normal(0, 0.12, 3))
    colour: Light = np.clip(varied, 0.01, 1.0).astype(np.float32)[:, None, None]
    return colour


def _mix(share: Light, first: Light, second: Light) -> Light:
    mixed: Light = first + np.clip(share, 0, 1) * (second - first)
    return mixed


def _surroundings(rng: np.random.Generator, textures: Light, y: Light, x: Light) -> Light:
    height, width = y.shape[0], x.shape[1]
    # How much detail pictures have varies widely, and with it the size of their files.
    roughness = float(np.exp(rng.uniform(np.log(0.05), np.log(0.7))))
    cloudy = 0.5 * y / height + rng.uniform(0.05, 0.25) * textures[0]
    sky = _mix(cloudy, _colour(rng), _colour(rng))
    patchy = 0.5 + roughness * textures[int(rng.integers(1, 4))]
    ground = _mix(patchy, _colour(rng), _colour(rng))
    ground *= np.maximum(1 + roughness * textures[2], 0.1)
    horizon = height * rng.uniform(0, 0.8) + (x - width / 2) * rng.uniform(-0.15, 0.15)
    above = np.clip(horizon + rng.uniform(0, 14) * textures[0] - y + 0.5, 0, 1)
    surroundings: Light = ground + above * (sky - ground)
    return surroundings


def _paint(rng: np.random.Generator, scene: Light, textures: Light, size_px: float) -> None:
    """Lay one shape over the scene, in place."""
    height, width = scene.shape[1:]
    row, column = rng.uniform(0, height), rng.uniform(0, width)
    ratio = float(np.exp(rng.uniform(-0.9, 0.9)))
    tall, wide = size_px * ratio, size_px / ratio
    tilt = rng.uniform(0, np.pi)
    cosine, sine = float(np.cos(tilt)), float(np.sin(tilt))
    # The box around a tilted rectangle of these half sides holds every outline.
    down = 1.1 * (tall * abs(cosine) + wide * abs(sine))
    across = 1.1 * (tall * abs(sine) + wide * abs(cosine))
    top, bottom = max(0, int(row - down)), min(height, int(row + down) + 1)
    left, right = max(0, int(column - across)), min(width, int(column + across) + 1)
    y = np.arange(top, bottom, dtype=np.float32)[:, None] - row
    x = np.arange(left, right, dtype=np.float32)[None] - column
    u = (y * cosine + x * sine) / tall
    v = (x * cosine - y * sine) / wide
    local = textures[:, top:bottom, left:right]

    outline = rng.integers(4)
    if outline == 0:
        radius = np.sqrt(u * u + v * v)
    elif outline == 1:
        radius = np.maximum(np.abs(u), np.abs(v))
    elif outline == 2:
        radius = np.abs(u) + np.abs(v)
    else:
        radius = np.sqrt(u * u + v * v) + 0.15 + 0.15 * local[0]
    cover = np.clip((1 - radius) * min(tall, wide) + 0.5, 0, 1)

    surface = rng.integers(6)
    if surface <= 1:
        share = 0.5 + rng.uniform(0.15, 0.5) * local[int(rng.integers(4))]
    elif surface == 2:
        share = 0.5 + 0.5 * np.sin(rng.uniform(4, max(6, 0.7 * size_px)) * u + local[0])
    elif surface == 3:
        turns = rng.uniform(3, max(4, 0.4 * size_px))
        share = 0.5 + 4 * np.sin(turns * u) * np.sin(turns * v)
    else:
        share = 0.5 + rng.uniform(-0.4, 0.4) * u + 0.08 * local[2]
    shading = np.maximum(1 + rng.uniform(-0.5, 0.5) * v, 0.1)
    painted = _mix(share, _colour(rng), _colour(rng))
    painted *= shading
    region = scene[:, top:bottom, left:right]
    region += cover * (painted - region)


_SKIMAGE = Path(skimage.__file__).parent / "data"
_SKLEARN = Path(str(distribution("scikit-learn").locate_file("sklearn/datasets/images")))

# The two views of the motorcycle show one scene, so only one of them is here. What is no everyday picture (a
# microscope, two telescopes, the ground of an eye, a rocket far away) is for training.
_NAMES = {
    "train": "astronaut.png brick.png coins.png grass.png hubble_deep_field.jpg ihc.png moon.png retina.jpg"
    " rocket.jpg flower.jpg",
    "stream": "camera.png coffee.png motorcycle_left.png",
    "after": "chelsea.png gravel.png china.jpg",
}
_OF_SKLEARN = ("china.jpg", "flower.jpg")
PHOTOGRAPHS = {
    split: tuple((_SKLEARN if name in _OF_SKLEARN else _SKIMAGE) / name for name in names.split())
    for split, names in _NAMES.items()
}
"""Split → files. A split's media show its own photographs and no other's."""

GRID_PX = 16


@lru_cache(maxsize=32)
def _pixels(path: Path) -> Picture:
    with Image.open(path, formats=("JPEG", "PNG")) as image:
        return np.asarray(image.convert("RGB"))


def piece(rng: np.random.Generator, split: str, height: int, width: int) -> tuple[str, Picture]:
    """The group of one of the split's photographs and a random piece of it, uint8 [height, width, 3]."""
    paths = PHOTOGRAPHS[split]
    path = paths[int(rng.integers(len(paths)))]
    pixels = _pixels(path)
    top = GRID_PX * int(rng.integers((pixels.shape[0] - height) // GRID_PX + 1))
    left = GRID_PX * int(rng.integers((pixels.shape[1] - width) // GRID_PX + 1))
    return f"photo-{path.stem}", pixels[top : top + height, left : left + width]

"""Rendered scenes in linear light: what the simulated cameras look at.

A scene is a ground and a sky, both textured, with shapes in front that cover one another, each with its own
surface and shading. Fractal textures follow the 1/f amplitude law of natural images (Field 1987).
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft

Light = NDArray[np.float32]


def render(rng: np.random.Generator, height: int, width: int) -> Light:
    """A scene [height, width, 3], linear light, 1 = the white of the exposure (highlights may exceed it)."""
    textures = _textures(rng, height, width)
    y = np.arange(height, dtype=np.float32)[:, None]
    x = np.arange(width, dtype=np.float32)[None]
    scene = _surroundings(rng, textures, y, x)
    count = int(rng.integers(6, 22))
    sizes_px = np.sort(np.exp(rng.uniform(np.log(7), np.log(95), count)))[::-1]
    for size_px in sizes_px:
        _paint(rng, scene, textures, float(size_px))
    across, down = rng.uniform(-0.3, 0.3, 2)
    lighting = 1 + across * (x / width - 0.5) + down * (y / height - 0.5) + 0.12 * textures[1]
    scene *= np.maximum(lighting, 0.2)[..., None]
    exposure = rng.uniform(0.14, 0.3) / max(float(scene.mean()), 1e-3)
    scene *= exposure
    return scene


@lru_cache(maxsize=32)
def _frequencies(height: int, width: int) -> tuple[Light, Light]:
    down = fft.fftfreq(height).astype(np.float32)[:, None] ** 2
    across = fft.fftfreq(width).astype(np.float32)[None] ** 2
    return down, across


def _textures(rng: np.random.Generator, height: int, width: int) -> Light:
    """Four fractal planes [4, height, width] of mean 0 and deviation 1: two even, two with a grain direction."""
    down, across = _frequencies(height, width)
    planes = np.empty((4, height, width), np.float32)
    for pair in range(2):
        stretch = 1.0 if pair == 0 else float(np.exp(rng.uniform(-2.2, 2.2)))
        slope = rng.uniform(1.0, 1.7) if pair == 0 else rng.uniform(0.8, 1.3)
        power = down * stretch + across / stretch
        power[0, 0] = 1
        amplitude = power ** np.float32(-slope / 2)
        amplitude[0, 0] = 0
        white = rng.standard_normal((height, width, 2), dtype=np.float32).view(np.complex64)[..., 0]
        # The real and the imaginary part of one complex transform are two independent planes.
        field = fft.ifft2(white * amplitude)
        planes[2 * pair], planes[2 * pair + 1] = field.real, field.imag
    planes /= planes.std(axis=(1, 2), keepdims=True)
    return planes


def _colour(rng: np.random.Generator) -> Light:
    """A reflectance [3] of log-uniform brightness and moderate saturation."""
    hue = rng.uniform(0, 1, 3)
    saturated = 1 + rng.beta(1.5, 2.5) * 1.6 * (hue - hue.mean())
    brightness = np.exp(rng.uniform(np.log(0.05), np.log(0.8)))
    return np.asarray(np.clip(brightness * saturated, 0.01, 1.1), np.float32)


def _mixed(share: Light, first: Light, second: Light) -> Light:
    return first + np.clip(share, 0, 1)[..., None] * (second - first)


def _surroundings(rng: np.random.Generator, textures: Light, y: Light, x: Light) -> Light:
    height, width = y.shape[0], x.shape[1]
    sky = _mixed(0.5 * y / height + 0.25 * textures[0] * rng.uniform(0.2, 1), _colour(rng), _colour(rng))
    ground = _mixed(
        0.5 + rng.uniform(0.1, 0.5) * textures[int(rng.integers(1, 4))], _colour(rng), _colour(rng)
    )
    ground *= np.maximum(1 + rng.uniform(0.1, 0.4) * textures[2], 0.1)[..., None]
    horizon = height * rng.uniform(0, 0.8) + (x - width / 2) * rng.uniform(-0.15, 0.15)
    horizon = horizon + rng.uniform(0, 14) * textures[0]
    above = np.clip(horizon - y + 0.5, 0, 1)[..., None]
    surroundings: Light = ground + above * (sky - ground)
    return surroundings


def _paint(rng: np.random.Generator, scene: Light, textures: Light, size_px: float) -> None:
    """Lay one shape over the scene, in place."""
    height, width = scene.shape[:2]
    row, column = rng.uniform(0, height), rng.uniform(0, width)
    ratio = float(np.exp(rng.uniform(-0.9, 0.9)))
    tall, wide = size_px * ratio, size_px / ratio
    tilt = rng.uniform(0, np.pi)
    reach = 1.3 * np.hypot(tall, wide)
    top, bottom = max(0, int(row - reach)), min(height, int(row + reach) + 1)
    left, right = max(0, int(column - reach)), min(width, int(column + reach) + 1)
    y = np.arange(top, bottom, dtype=np.float32)[:, None] - np.float32(row)
    x = np.arange(left, right, dtype=np.float32)[None] - np.float32(column)
    u = (y * np.float32(np.cos(tilt)) + x * np.float32(np.sin(tilt))) / np.float32(tall)
    v = (x * np.float32(np.cos(tilt)) - y * np.float32(np.sin(tilt))) / np.float32(wide)
    local = textures[:, top:bottom, left:right]

    outline = rng.integers(4)
    if outline == 0:
        radius = np.sqrt(u * u + v * v)
    elif outline == 1:
        radius = np.maximum(np.abs(u), np.abs(v))
    elif outline == 2:
        radius = np.abs(u) + np.abs(v)
    else:
        radius = np.sqrt(u * u + v * v) + np.float32(0.25) * local[0]
    cover = np.clip((1 - radius) * np.float32(min(tall, wide)) + np.float32(0.5), 0, 1)

    surface = rng.integers(5)
    if surface == 0:
        share = 0.5 + np.float32(rng.uniform(0.15, 0.5)) * local[int(rng.integers(4))]
    elif surface == 1:
        share = 0.5 + 0.5 * np.sin(np.float32(rng.uniform(4, 0.7 * size_px)) * u + local[0])
    elif surface == 2:
        stripes = np.float32(rng.uniform(3, max(4.0, 0.4 * size_px)))
        share = 0.5 + 4 * np.sin(stripes * u) * np.sin(stripes * v)
    else:
        share = 0.5 + np.float32(rng.uniform(-0.4, 0.4)) * u + np.float32(0.08) * local[2]
    shading = np.maximum(1 + np.float32(rng.uniform(-0.5, 0.5)) * v, np.float32(0.1))
    painted = _mixed(share, _colour(rng), _colour(rng)) * shading[..., None]
    region = scene[top:bottom, left:right]
    region += cover[..., None] * (painted - region)

"""Perturbations by lens, sensor and camera, 13 of our own for ForgeryNet. A level 1..5 indexes a table here.

Each takes and gives uint8 RGB [T, H, W, 3]. Noise is drawn anew for each frame; else one draw holds for all.
Maps, uint8 [T, H, W], move by the same draw: the function itself moves them, but for `aberration_maps`.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from scipy.ndimage import gaussian_filter, map_coordinates
from scipy.signal import oaconvolve

from updater import filters
from updater.distortions.distortion import Distortion
from updater.filters import Picture, Pixels, correlate, gaussian, to_picture

BLUR_SIGMAS_PX = (0.8, 1.2, 1.8, 2.5, 3.5)
MOTION_LENGTHS_PX = (5, 7, 11, 15, 21)
DEFOCUS_RADII_PX = (2, 3, 4, 6, 8)
MEDIAN_SIDES_PX = (3, 3, 5, 7, 9)
MEDIAN_TWICE = 2
"""The level that has its filter applied twice."""
GLASS_REACHES_PX = (1, 1, 2, 3, 4)
GLASS_PASSES = (1, 2, 1, 2, 2)
GAUSSIAN_NOISE_SDS = (4, 8, 13, 20, 30)
"""Standard deviations in levels."""
ISO_LUMA_SDS = (3, 6, 10, 15, 22)
"""Standard deviations in levels."""
ISO_CHROMA_SHARE = 1.5
MULTIPLICATIVE_SDS = (0.05, 0.1, 0.15, 0.22, 0.3)
PHOTONS = (2000, 800, 300, 120, 50)
LENS_STRENGTHS = (0.03, 0.06, 0.1, 0.15, 0.22)
ELASTIC_REACHES_PX = (1, 2, 3, 4.5, 6)
"""How far the place moves that moves the farthest down, and the one that moves the farthest sideways."""
ELASTIC_SIGMA_PX = 10
SHARPEN_SHARES = (0.5, 1, 1.5, 2.2, 3)
SHARPEN_SIGMA_PX = 1.0
ABERRATION_SHIFTS_PX = (0.5, 1, 1.5, 2.5, 4)

_RED, _BLUE = 0, 2
# ITU-R BT.601: what a level of Y, Cb, Cr adds to R, G, B
_TO_RGB = np.array([[1, 1, 1], [0, -0.344136, 1.772], [1.402, -0.714136, 0]], np.float32)

Field = NDArray[np.float64]
"""How many pixels (down, across) from its own place each pixel comes from, [2, H, W]."""


def gaussian_blur(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Blur by a Gaussian cut off at three standard deviations. Draws nothing."""
    return to_picture(gaussian(frames.astype(np.float32), BLUR_SIGMAS_PX[level - 1]))


def motion_blur(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Average along a straight line, as of a camera that moves while it exposes. Draws the direction."""
    kernel = _line(MOTION_LENGTHS_PX[level - 1], rng.uniform(0, np.pi))
    return to_picture(correlate(frames.astype(np.float32), kernel))


def defocus(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Blur by a disc, as of a lens out of focus. Draws nothing."""
    radius = DEFOCUS_RADII_PX[level - 1]
    disc = _disc(radius)
    blurred = np.empty_like(frames)
    edges = [(radius, radius), (radius, radius), (0, 0)]
    for number, frame in enumerate(frames):
        padded = np.pad(frame.astype(np.float32), edges, mode="reflect")
        blurred[number] = to_picture(oaconvolve(padded, disc[..., None], "valid", axes=(0, 1)))
    return blurred


def median(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Take the median of a square neighbourhood. Draws nothing."""
    side = MEDIAN_SIDES_PX[level - 1]
    if side == MEDIAN_SIDES_PX[0]:
        pixels = filters.median(frames.astype(np.float32))
        return to_picture(filters.median(pixels) if level == MEDIAN_TWICE else pixels)
    window = ImageFilter.MedianFilter(side)
    return np.stack([np.asarray(Image.fromarray(frame).filter(window)) for frame in frames])


def glass_blur(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Take each pixel from a place near by, as through frosted glass. Draws the places."""
    height, width = frames.shape[1:3]
    reach = GLASS_REACHES_PX[level - 1]
    scattered = frames
    for _ in range(GLASS_PASSES[level - 1]):
        down, across = rng.integers(-reach, reach + 1, (2, height, width))
        rows = np.clip(np.arange(height)[:, None] + down, 0, height - 1)
        columns = np.clip(np.arange(width) + across, 0, width - 1)
        scattered = scattered[:, rows, columns]
    return scattered


def gaussian_noise(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Add white noise to each channel."""
    noisy = np.empty_like(frames)
    for number, frame in enumerate(frames):
        noisy[number] = to_picture(frame + np.float32(GAUSSIAN_NOISE_SDS[level - 1]) * _grain(rng, frame))
    return noisy


def iso_noise(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Add the noise of a sensor at high gain: on the luma, and more of it on the two chromas."""
    luma = ISO_LUMA_SDS[level - 1]
    sds = np.array([luma, ISO_CHROMA_SHARE * luma, ISO_CHROMA_SHARE * luma], np.float32)
    noisy = np.empty_like(frames)
    for number, frame in enumerate(frames):
        noisy[number] = to_picture(frame + (_grain(rng, frame) * sds) @ _TO_RGB)
    return noisy


def multiplicative_noise(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Multiply each value by a factor about 1."""
    noisy = np.empty_like(frames)
    for number, frame in enumerate(frames):
        factors = 1 + np.float32(MULTIPLICATIVE_SDS[level - 1]) * _grain(rng, frame)
        noisy[number] = to_picture(frame * factors)
    return noisy


def poisson(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Count photons, so many of them at white."""
    photons_a_level = PHOTONS[level - 1] / 255
    counted = np.empty_like(frames)
    for number, frame in enumerate(frames):
        counts = rng.poisson(frame * photons_a_level).astype(np.float32)
        counted[number] = to_picture(counts / np.float32(photons_a_level))
    return counted


def optical_distortion(rng: np.random.Generator, stack: Picture, level: int) -> Picture:
    """Bend as a lens does: x' = x (1 + k r²), r = 1 in the corners; barrel or cushion. Draws the sign.

    Maps, uint8 [T, H, W], bend as the same draw bends frames.
    """
    height, width = stack.shape[1:3]
    strength = LENS_STRENGTHS[level - 1] * rng.choice((-1, 1))
    down = np.arange(height)[:, None] - (height - 1) / 2
    across = np.arange(width)[None] - (width - 1) / 2
    corner = max(1.0, np.hypot(height - 1, width - 1) / 2)
    bend = strength * (down**2 + across**2) / corner**2
    return _displace(stack, np.stack([down * bend, across * bend]))


def elastic(rng: np.random.Generator, stack: Picture, level: int) -> Picture:
    """Move each place a little, by a random smooth field. Draws the field.

    Maps, uint8 [T, H, W], bend as the same draw bends frames.
    """
    rough = rng.standard_normal((2, *stack.shape[1:3]))
    smooth: Field = gaussian_filter(rough, (0, ELASTIC_SIGMA_PX, ELASTIC_SIGMA_PX), mode="mirror")
    smooth *= ELASTIC_REACHES_PX[level - 1] / np.abs(smooth).max(axis=(1, 2), keepdims=True)
    return _displace(stack, smooth)


def sharpen(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Add a share of what a Gaussian of σ 1 px takes away: an unsharp mask. Draws nothing."""
    pixels = frames.astype(np.float32)
    lost = pixels - gaussian(pixels, SHARPEN_SIGMA_PX)
    return to_picture(pixels + np.float32(SHARPEN_SHARES[level - 1]) * lost)


def aberration(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Move red one way and blue the other: lateral chromatic aberration. Draws the direction."""
    field = _apart(rng, frames, level)
    parted = frames.copy()
    parted[..., _RED] = _displace(frames[..., _RED], field)
    parted[..., _BLUE] = _displace(frames[..., _BLUE], -field)
    return parted


def aberration_maps(rng: np.random.Generator, maps: Picture, level: int) -> Picture:
    """Widen maps, uint8 [T, H, W]: a pixel is forged as far as the most forged of its three colours."""
    field = _apart(rng, maps, level)
    return np.maximum(maps, np.maximum(_displace(maps, field), _displace(maps, -field)))


def _apart(rng: np.random.Generator, stack: Picture, level: int) -> Field:
    angle = rng.uniform(0, 2 * np.pi)
    shift = ABERRATION_SHIFTS_PX[level - 1] * np.array([np.sin(angle), np.cos(angle)])
    return np.broadcast_to(shift[:, None, None], (2, *stack.shape[1:3]))


def _displace(stack: Picture, field: Field) -> Picture:
    """Move uint8 [T, H, W] or [T, H, W, C] by a field [2, H, W], bilinear, the borders mirrored."""
    places = np.indices(stack.shape[1:3]) + field
    moved = np.empty_like(stack)
    for number, picture in enumerate(stack):
        channels = np.moveaxis(picture.reshape(*picture.shape[:2], -1), -1, 0)
        planes = [map_coordinates(plane, places, np.float32, 1, "mirror") for plane in channels]
        moved[number] = np.rint(np.stack(planes, -1)).reshape(picture.shape)
    return moved


def _grain(rng: np.random.Generator, frame: Picture) -> Pixels:
    return rng.standard_normal(frame.shape, dtype=np.float32)


def _line(length_px: int, angle: float) -> Pixels:
    """A line through the middle, float32 [length_px, length_px] of sum 1, its points shared by near taps."""
    reach = length_px // 2
    steps = np.linspace(-reach, reach, 4 * length_px + 1)
    rows, columns = reach + steps * np.sin(angle), reach + steps * np.cos(angle)
    kernel = np.zeros((length_px, length_px), np.float32)
    for down in (0, 1):
        for across in (0, 1):
            row, column = np.floor(rows).astype(int) + down, np.floor(columns).astype(int) + across
            share = (1 - np.abs(rows - row)) * (1 - np.abs(columns - column))
            inside = (row < length_px) & (column < length_px)
            np.add.at(kernel, (row[inside], column[inside]), share[inside])
    kernel /= kernel.sum()
    return kernel


def _disc(radius_px: int) -> Pixels:
    """A disc with a soft edge of a pixel, float32 [2 radius_px + 1] squared, of sum 1."""
    across = np.arange(-radius_px, radius_px + 1)
    distance = np.hypot(across[:, None], across[None])
    disc = np.clip(radius_px + 0.5 - distance, 0, 1).astype(np.float32)
    disc /= disc.sum()
    return disc


CAPTURE = {
    "gaussian_blur": Distortion(gaussian_blur),
    "motion_blur": Distortion(motion_blur),
    "defocus": Distortion(defocus),
    "median": Distortion(median),
    "glass_blur": Distortion(glass_blur),
    "gaussian_noise": Distortion(gaussian_noise, each_frame=True),
    "iso_noise": Distortion(iso_noise, each_frame=True),
    "multiplicative_noise": Distortion(multiplicative_noise, each_frame=True),
    "poisson": Distortion(poisson, each_frame=True),
    "optical_distortion": Distortion(optical_distortion, move=optical_distortion),
    "elastic": Distortion(elastic, move=elastic),
    "sharpen": Distortion(sharpen),
    "aberration": Distortion(aberration, move=aberration_maps),
}

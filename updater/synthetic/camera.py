"""A simulated camera: lens, Bayer mosaic, sensor noise, demosaicing, white balance, tone curve.

The picture is a piece from somewhere in a larger frame, so lateral chromatic aberration is one small shift for each
colour and vignetting one slope across the piece. Noise has a variance linear in the light (Foi et al. 2008).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from updater.filters import COLUMNS, ROWS, Picture, Pixels, correlate, gaussian, taps_along, to_picture
from updater.synthetic.scenes import Light


@dataclass(frozen=True)
class Camera:
    """What one model does to every picture that it takes."""

    name: str
    blur_px: float
    aberration_px: float
    vignetting: float
    gain: float
    read_noise: float
    red_at: tuple[int, int]
    edge_aware: bool
    crosstalk: float
    chroma_blur_px: float
    sharpening: float
    gamma: float
    contrast: float


CAMERAS: tuple[Camera, ...] = (
    Camera("a", 0.50, 0.20, 0.25, 0.00035, 0.0030, (0, 0), True, 0.06, 0.0, 0.25, 2.2, 0.10),
    Camera("b", 0.62, 0.35, 0.40, 0.00060, 0.0040, (0, 1), False, 0.10, 0.8, 0.40, 2.3, 0.20),
    Camera("c", 0.45, 0.10, 0.15, 0.00025, 0.0020, (1, 1), True, 0.04, 0.0, 0.10, 2.2, 0.05),
    Camera("d", 0.70, 0.45, 0.50, 0.00085, 0.0055, (0, 0), False, 0.12, 1.1, 0.50, 2.4, 0.25),
    Camera("e", 0.55, 0.25, 0.30, 0.00050, 0.0035, (1, 0), True, 0.08, 0.7, 0.30, 2.1, 0.15),
    Camera("f", 0.48, 0.15, 0.20, 0.00045, 0.0045, (0, 1), True, 0.05, 0.9, 0.20, 2.3, 0.00),
)

_CROSS = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], np.float32) / 4


def photograph(rng: np.random.Generator, scene: Light, camera: Camera) -> Picture:
    """Take the scene [H, W, 3] (linear light; H and W even) as the camera delivers it, uint8 [H, W, 3]."""
    across_frame, down_frame = rng.uniform(-1, 1, 2)
    light = _lens(scene, camera, across_frame, down_frame)
    illuminant = np.array([np.exp(rng.normal(0, 0.12)), 1, np.exp(rng.normal(0, 0.12))], np.float32)
    sensitivity = np.array([0.6, 1.0, 0.7], np.float32) * illuminant
    red, blue = _sites(scene.shape[0], scene.shape[1], camera.red_at)
    raw = np.where(red, light[..., 0] * sensitivity[0], light[..., 1])
    raw = np.where(blue, light[..., 2] * sensitivity[2], raw)
    speed = np.exp(rng.uniform(-0.5, 0.7))
    deviation = np.sqrt(np.maximum(raw, 0) * (camera.gain * speed) + (camera.read_noise**2) * speed)
    raw += deviation * rng.standard_normal(raw.shape, dtype=np.float32)
    # Twelve bits, black level subtracted, saturated at the white of the exposure.
    raw = np.rint(np.clip(raw, 0, 1) * 4095) / np.float32(4095)
    colours = _demosaic(raw, red, blue, camera.edge_aware)
    balance = (1 / sensitivity) * np.exp(rng.normal(0, 0.02, 3)).astype(np.float32)
    return _develop(colours, balance, camera)


def _lens(scene: Light, camera: Camera, across_frame: float, down_frame: float) -> Light:
    light = np.empty_like(scene)
    for channel, sideways in enumerate((1.0, 0.0, -0.8)):
        plane = scene[..., channel, None]
        for axis, place in ((ROWS, down_frame), (COLUMNS, across_frame)):
            shift = sideways * place * camera.aberration_px
            taps = np.exp(-0.5 * ((np.arange(-2, 3) - shift) / camera.blur_px) ** 2).astype(np.float32)
            plane = taps_along(plane, taps / taps.sum(), axis)
        light[..., channel] = plane[..., 0]
    height, width = scene.shape[:2]
    y = np.linspace(-0.15, 0.15, height, dtype=np.float32)[:, None] + np.float32(down_frame * 0.6)
    x = np.linspace(-0.15, 0.15, width, dtype=np.float32)[None] + np.float32(across_frame * 0.6)
    light *= (1 - np.float32(camera.vignetting) * (x * x + y * y))[..., None]
    return light


def _sites(height: int, width: int, red_at: tuple[int, int]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    red = np.zeros((height, width), bool)
    red[red_at[0] :: 2, red_at[1] :: 2] = True
    blue = np.zeros((height, width), bool)
    blue[1 - red_at[0] :: 2, 1 - red_at[1] :: 2] = True
    return red, blue


def _demosaic(raw: Light, red: NDArray[np.bool_], blue: NDArray[np.bool_], edge_aware: bool) -> Light:
    """Green first, then red and blue as differences from green (Hamilton and Adams 1997), or plainly bilinear."""
    plane = raw[..., None]
    green_site = ~(red | blue)
    if edge_aware:
        padded = np.pad(raw, 2, mode="reflect")
        north, south = padded[1:-3, 2:-2], padded[3:-1, 2:-2]
        west, east = padded[2:-2, 1:-3], padded[2:-2, 3:-1]
        bend_down = 2 * raw - padded[:-4, 2:-2] - padded[4:, 2:-2]
        bend_across = 2 * raw - padded[2:-2, :-4] - padded[2:-2, 4:]
        rough_down = np.abs(north - south) + np.abs(bend_down)
        rough_across = np.abs(west - east) + np.abs(bend_across)
        by_column = (north + south) / 2 + bend_down / 4
        by_row = (west + east) / 2 + bend_across / 4
        guess = np.where(rough_down < rough_across, by_column, by_row)
        green = np.where(green_site, raw, guess)
        base = green
    else:
        green = np.where(green_site, raw, correlate(plane, _CROSS)[..., 0])
        base = np.zeros_like(green)
    colours = np.empty((*raw.shape, 3), np.float32)
    colours[..., 1] = green
    tent = np.array([0.5, 1, 0.5], np.float32)
    for channel, site in ((0, red), (2, blue)):
        sparse = np.where(site, raw - base, np.float32(0))[..., None]
        spread = taps_along(taps_along(sparse, tent, ROWS), tent, COLUMNS)[..., 0]
        colours[..., channel] = base + spread
    return colours


def _develop(colours: Light, balance: Light, camera: Camera) -> Picture:
    balanced = colours * balance
    matrix = np.eye(3, dtype=np.float32) * (1 + 2 * camera.crosstalk) - camera.crosstalk * (
        1 - np.eye(3, dtype=np.float32)
    )
    levels: Pixels = _tone(np.clip(balanced @ matrix.T, 0, 1), camera)
    if camera.chroma_blur_px:
        luma = (levels @ np.array([0.299, 0.587, 0.114], np.float32))[..., None]
        levels = luma + gaussian(levels - luma, camera.chroma_blur_px)
    if camera.sharpening:
        levels = levels + camera.sharpening * (levels - gaussian(levels, 0.8))
    return to_picture(levels)


def _tone(linear: Light, camera: Camera) -> Pixels:
    """The tone curve by a table of 4,096 entries: gamma with a little S-shaped contrast, in levels."""
    shade = np.linspace(0, 1, 4096) ** (1 / camera.gamma)
    shade = shade + camera.contrast * (shade - 0.5) * shade * (1 - shade) * 2
    table = (255 * shade).astype(np.float32)
    curve: Pixels = table[(linear * 4095).astype(np.int32)]
    return curve

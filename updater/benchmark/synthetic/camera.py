"""A simulated camera (lens, Bayer mosaic, sensor noise, demosaicing, white balance, tone curve) and its file.

The picture is a piece from somewhere in a larger frame, so lateral chromatic aberration is one small shift
for each colour and vignetting one slope across the piece. Noise has a variance linear in the light (Foi
et al. 2008).

A forgery that smooths makes files small and one that sharpens makes them large. So that neither the size nor
the quality gives it away, the forged picture is written at the quality whose size lies between its own and
that of the picture it was made from (both at the quality that was drawn): each keeps a part of the
difference, and the wide spread of both hides it.
"""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from updater.benchmark.synthetic.scenes import Light
from updater.filters import COLUMNS, ROWS, Picture, gaussian, taps_along, to_picture

Mask = NDArray[np.bool_]


Sensor = Literal["bilinear", "edge-aware", "layered", "grey"]


@dataclass(frozen=True)
class Camera:
    """One camera model's processing of every picture. Lengths in px, noise in parts of full scale."""

    blur_px: float
    aberration_px: float
    vignetting: float
    gain: float
    """variance of the light's own noise, for each unit of light"""
    read_noise: float
    sensor: Sensor
    """a Bayer mosaic and how it is undone; or three layers that each see all pixels; or no colour at all"""
    red_at: tuple[int, int]
    """row and column of the first red pixel, 0 or 1"""
    crosstalk: float
    chroma_blur_px: float
    sharpening: float
    gamma: float
    contrast: float


CAMERAS: tuple[Camera, ...] = (
    Camera(0.50, 0.20, 0.25, 0.00035, 0.0030, "edge-aware", (0, 0), 0.06, 0.0, 0.25, 2.2, 0.10),
    Camera(0.62, 0.35, 0.40, 0.00060, 0.0040, "bilinear", (0, 1), 0.10, 0.8, 0.40, 2.3, 0.20),
    Camera(0.45, 0.10, 0.15, 0.00025, 0.0020, "edge-aware", (1, 1), 0.04, 0.0, 0.10, 2.2, 0.05),
    Camera(0.70, 0.45, 0.50, 0.00085, 0.0055, "bilinear", (0, 0), 0.12, 1.1, 0.50, 2.4, 0.25),
    Camera(0.55, 0.25, 0.30, 0.00050, 0.0035, "edge-aware", (1, 0), 0.08, 0.7, 0.30, 2.1, 0.15),
    Camera(0.48, 0.15, 0.20, 0.00045, 0.0045, "edge-aware", (0, 1), 0.05, 0.9, 0.20, 2.3, 0.00),
    Camera(0.58, 0.05, 0.10, 0.00030, 0.0035, "layered", (0, 0), 0.15, 0.0, 0.40, 2.2, 0.15),
    Camera(0.60, 0.20, 0.30, 0.00040, 0.0040, "grey", (0, 0), 0.00, 0.0, 0.30, 2.2, 0.10),
)


def photograph(
    rng: np.random.Generator, scene: Light, camera: Camera, noise: np.random.Generator | None = None
) -> Picture:
    """Take the scene [3, H, W] (linear light; H and W even) as the camera delivers it, uint8 [H, W, 3].

    noise: what the noise is drawn from, if not from rng. So generators that begin alike give pictures that
    only their noise tells apart: frames that one camera took in one state.
    """
    light = _lens(rng, scene, camera)
    noise = noise or rng
    speed = float(np.exp(rng.uniform(-0.5, 0.7)))
    if camera.sensor == "grey":
        return _develop(np.stack([_expose(noise, _luma(light), camera, speed)] * 3), camera)
    illuminant = np.array([np.exp(rng.normal(0, 0.12)), 1, np.exp(rng.normal(0, 0.12))], np.float32)
    sensitivity = np.array([0.6, 1.0, 0.7], np.float32) * illuminant
    light *= sensitivity[:, None, None]
    if camera.sensor == "layered":
        colours = _expose(noise, light, camera, speed)
    else:
        red, blue = _sites(light.shape[1], light.shape[2], camera.red_at)
        mosaic = np.where(red, light[0], np.where(blue, light[2], light[1]))
        raw = _expose(noise, mosaic, camera, speed)
        colours = _demosaic(raw, red, blue, camera.sensor == "edge-aware")
    colours *= (np.exp(rng.normal(0, 0.02, 3)) / sensitivity).astype(np.float32)[:, None, None]
    return _develop(colours, camera)


def film(rng: np.random.Generator, camera: Camera, state: int, windows: Iterable[Light]) -> Picture:
    """Take frames, uint8 [T, H, W, 3], by a camera in one state, with noise of its own in each."""
    return np.stack([photograph(np.random.default_rng(state), window, camera, rng) for window in windows])


def _expose(rng: np.random.Generator, light: Light, camera: Camera, speed: float) -> Light:
    """Photon and read noise, then twelve bits, saturated at the white of the exposure."""
    photons, electronics = np.float32(camera.gain * speed), np.float32(camera.read_noise**2 * speed)
    deviation = np.sqrt(np.maximum(light, np.float32(0)) * photons + electronics)
    noisy = light + deviation * rng.standard_normal(light.shape, dtype=np.float32)
    measured: Light = np.rint(np.clip(noisy, np.float32(0), np.float32(1)) * 4095) / np.float32(4095)
    return measured


def _lens(rng: np.random.Generator, scene: Light, camera: Camera) -> Light:
    across_frame, down_frame = rng.uniform(-1, 1, 2)
    light = np.empty_like(scene)
    for channel, sideways in enumerate((1.0, 0.0, -0.8)):
        plane = scene[channel, :, :, None]
        for axis, place in ((ROWS, down_frame), (COLUMNS, across_frame)):
            shift = sideways * place * camera.aberration_px
            taps = np.exp(-0.5 * ((np.arange(-2, 3) - shift) / camera.blur_px) ** 2).astype(np.float32)
            plane = taps_along(plane, taps / taps.sum(), axis)
        light[channel] = plane[..., 0]
    y = np.linspace(-0.15, 0.15, scene.shape[1], dtype=np.float32)[:, None] + float(down_frame * 0.6)
    x = np.linspace(-0.15, 0.15, scene.shape[2], dtype=np.float32)[None] + float(across_frame * 0.6)
    light *= 1 - camera.vignetting * (x * x + y * y)
    return light


@lru_cache(maxsize=64)
def _sites(height: int, width: int, red_at: tuple[int, int]) -> tuple[Mask, Mask]:
    """Where the mosaic measures red, and where blue: bool [height, width] each."""
    red, blue = np.zeros((height, width), bool), np.zeros((height, width), bool)
    red[red_at[0] :: 2, red_at[1] :: 2] = True
    blue[1 - red_at[0] :: 2, 1 - red_at[1] :: 2] = True
    return red, blue


def _demosaic(raw: Light, red: Mask, blue: Mask, edge_aware: bool) -> Light:
    """Plainly bilinear, or green along edges first and red and blue as differences from it.

    The second is the method of Hamilton and Adams 1997.
    """
    padded = np.pad(raw, 2, mode="reflect")
    north, south = padded[1:-3, 2:-2], padded[3:-1, 2:-2]
    west, east = padded[2:-2, 1:-3], padded[2:-2, 3:-1]
    if edge_aware:
        bend_down = 2 * raw - padded[:-4, 2:-2] - padded[4:, 2:-2]
        bend_across = 2 * raw - padded[2:-2, :-4] - padded[2:-2, 4:]
        rough_down = np.abs(north - south) + np.abs(bend_down)
        rough_across = np.abs(west - east) + np.abs(bend_across)
        by_column = 0.5 * (north + south) + 0.25 * bend_down
        by_row = 0.5 * (west + east) + 0.25 * bend_across
        guess = np.where(rough_down < rough_across, by_column, by_row)
    else:
        guess = 0.25 * (north + south + west + east)
    coloured = red | blue
    green = np.where(coloured, guess, raw)
    base = green if edge_aware else np.zeros_like(green)
    colours = np.empty((3, *raw.shape), np.float32)
    colours[1] = green
    tent = np.array([0.5, 1, 0.5], np.float32)
    for channel, site in ((0, red), (2, blue)):
        sparse = np.where(site, raw - base, np.float32(0))[..., None]
        colours[channel] = base + taps_along(taps_along(sparse, tent, ROWS), tent, COLUMNS)[..., 0]
    return colours


def _develop(colours: Light, camera: Camera) -> Picture:
    """Colour matrix and tone curve; then, where the model does it, smoother colour and sharper brightness."""
    purer: Light = (1 + 3 * camera.crosstalk) * colours - camera.crosstalk * colours.sum(0)
    shades = (np.clip(purer, np.float32(0), np.float32(1)) * 4095).astype(np.int32)
    levels = _tone_table(camera.gamma, camera.contrast)[shades]
    luma = _luma(levels)
    if camera.chroma_blur_px:
        for plane in levels:
            plane[:] = luma + gaussian((plane - luma)[..., None], camera.chroma_blur_px)[..., 0]
    if camera.sharpening:
        levels += camera.sharpening * (luma - gaussian(luma[..., None], 0.8)[..., 0])
    return np.ascontiguousarray(np.moveaxis(to_picture(levels), 0, -1))


def _luma(colours: Light) -> Light:
    luma: Light = 0.299 * colours[0] + 0.587 * colours[1] + 0.114 * colours[2]
    return luma


@lru_cache(maxsize=16)
def _tone_table(gamma: float, contrast: float) -> Light:
    """The tone curve at 4,096 shades: gamma with a little S-shaped contrast, in levels."""
    shade = np.linspace(0, 1, 4096) ** (1 / gamma)
    return (255 * (shade + 2 * contrast * (shade - 0.5) * shade * (1 - shade))).astype(np.float32)


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
        data = _compensate_size(data, len(_encode(source, form, drawn)), picture, form, drawn)
    return data, "webp" if form == "WEBP" else "jpg"


def _compensate_size(data: bytes, source_bytes: int, picture: Picture, form: str, drawn: int) -> bytes:
    wanted = 0.2 * np.log(len(data)) + 0.8 * np.log(source_bytes)
    direction = 1 if wanted > np.log(len(data)) else -1
    quality, best = drawn, data
    while LOWEST < quality < HIGHEST:
        candidate = _encode(picture, form, quality := quality + direction)
        if abs(np.log(len(candidate)) - wanted) >= abs(np.log(len(best)) - wanted):
            return best
        best = candidate
    return best


def _encode(picture: Picture, form: str, quality: int) -> bytes:
    buffer = io.BytesIO()
    # Only WebP has methods: the other ignores it.
    Image.fromarray(picture).save(buffer, form, quality=quality, method=1)
    return buffer.getvalue()

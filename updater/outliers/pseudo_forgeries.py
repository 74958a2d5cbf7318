"""Random pseudo-forgeries: outliers that teach a detector traces of tampering by any method.

A chain of one to three random operations of random strength, whole or only behind a feathered mask. Each
operation declares its kinds, in the words of `updater/benchmark/synthetic/families.py`; while a family is
measured as unseen, operations of its kinds stay out of the training.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image
from scipy import fft

from updater.filters import (
    COLUMNS,
    ROWS,
    Picture,
    Pixels,
    correlate,
    feathered_ellipse,
    gaussian,
    jpeg,
    median,
    resize,
    taps_along,
    to_picture,
)

MASK_KIND = "blending"
MASK_SHARE = 0.3
_SCALING = Image.Resampling
_METHODS = _SCALING.BILINEAR, _SCALING.BICUBIC, _SCALING.LANCZOS, _SCALING.BOX


@dataclass(frozen=True)
class Operation:
    """One tampering of random strength on levels [..., H, W, 3], and the kinds that it belongs to."""

    kinds: frozenset[str]
    apply: Callable[[np.random.Generator, Pixels], Pixels]
    everywhere: Callable[[np.random.Generator, Pixels], Pixels] | None = None
    """of an operation that draws a part of its own: the same on all of the picture"""


def pseudo_forge(rng: np.random.Generator, picture: Picture, without: frozenset[str]) -> Picture:
    """Tamper with uint8 [H, W, 3], or alike with each of a stack [N, H, W, 3] (H, W ≥ 32).

    No operation whose kinds meet `without` is used; a mask counts as blending. Raises ValueError if none
    is left.
    """
    pixels = picture.astype(np.float32)
    forged = tamper(rng, pixels, without)
    if MASK_KIND not in without and rng.random() < MASK_SHARE:
        height, width = picture.shape[ROWS], picture.shape[COLUMNS]
        mask = feathered_ellipse(rng, height, width, (0.3, 0.7), rng.uniform(1, 10))
        forged = pixels + mask * (forged - pixels)
    return to_picture(forged)


def tamper(
    rng: np.random.Generator,
    pixels: Pixels,
    without: frozenset[str],
    *,
    behind_mask: bool = False,
    most: int = 3,
) -> Pixels:
    """Apply one to three random operations to levels [..., H, W, 3], none whose kinds meet `without`.

    behind_mask: each on all of the picture, for it is to be kept behind a mask; most: operations. Raises
    ValueError if no operation is left.
    """
    names = [name for name, operation in OPERATIONS.items() if not operation.kinds & without]
    if not names:
        raise ValueError(f"no operation is left without {sorted(without)}")
    count = min(len(names), most, int(rng.choice([1, 2, 3], p=[0.5, 0.35, 0.15])))
    chosen = rng.choice(names, count, replace=False)
    for name in chosen:
        operation = OPERATIONS[name]
        apply = (operation.everywhere if behind_mask else None) or operation.apply
        pixels = apply(rng, pixels)
    return pixels


def _resample(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    height, width = pixels.shape[ROWS], pixels.shape[COLUMNS]
    factor = rng.uniform(0.4, 0.9) if rng.random() < 0.7 else rng.uniform(1.2, 1.8)
    there, back = rng.integers(len(_METHODS), size=2)
    between = resize(pixels, round(height * factor), round(width * factor), _METHODS[there])
    return resize(between, height, width, _METHODS[back])


def _transposed_convolution(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    height, width = pixels.shape[ROWS], pixels.shape[COLUMNS]
    half = resize(pixels, (height + 1) // 2, (width + 1) // 2, _METHODS[int(rng.integers(len(_METHODS)))])
    spread = np.zeros_like(pixels)
    spread[..., ::2, ::2, :] = half
    size = int(rng.choice([3, 5]))
    window = np.hanning(size + 2)[1:-1]
    even = np.outer(window, window) / window.sum() ** 2
    share = rng.uniform(0.1, 0.5)
    kernel = 4 * ((1 - share) * even + share * rng.dirichlet(np.ones(size * size) * 2).reshape(size, size))
    return correlate(spread, kernel.astype(np.float32))


def _warp(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    """Bend by a smooth field: the corners of a coarse mesh move by a few pixels."""
    height, width = pixels.shape[ROWS], pixels.shape[COLUMNS]
    cells = 4
    rows, columns = (np.linspace(0, side, cells + 1).astype(int) for side in (height, width))
    moves = rng.normal(0, rng.uniform(0.8, 2.5), (cells + 1, cells + 1, 2))
    mesh = []
    for i in range(cells):
        for j in range(cells):
            corners = [(i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1)]
            quad = tuple(
                float(value)
                for r, c in corners
                for value in (
                    np.clip(columns[c] + moves[r, c, 0], 0, width),
                    np.clip(rows[r] + moves[r, c, 1], 0, height),
                )
            )
            mesh.append(((int(columns[j]), int(rows[i]), int(columns[j + 1]), int(rows[i + 1])), quad))
    flat = to_picture(pixels).reshape(-1, height, width, 3)
    bent = [
        np.asarray(
            Image.fromarray(plane).transform(
                (width, height), Image.Transform.MESH, mesh, Image.Resampling.BICUBIC
            )
        )
        for plane in flat
    ]
    return np.stack(bent).reshape(pixels.shape).astype(np.float32)


def _sharpen(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    return pixels + np.float32(rng.uniform(0.5, 3)) * (pixels - gaussian(pixels, rng.uniform(0.6, 1.8)))


def _blur(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    return gaussian(pixels, rng.uniform(0.45, 1.6))


def _motion_blur(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    length = int(rng.choice([3, 5]))
    taps = np.full(length, 1 / length, np.float32)
    return taps_along(pixels, taps, ROWS if rng.random() < 0.5 else COLUMNS)


def _median(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    once = median(pixels)
    return median(once) if rng.random() < 0.4 else once


def _noise(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    return pixels + np.float32(rng.uniform(2, 10)) * rng.standard_normal(pixels.shape, dtype=np.float32)


def _coloured_noise(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    grain = rng.standard_normal((*pixels.shape[:-1], 1), dtype=np.float32)
    soft = gaussian(grain, rng.uniform(0.6, 1.5))
    return pixels + soft * (rng.uniform(2, 7) / float(soft.std()))


def _impulses(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    struck = rng.random(pixels.shape[:-1], dtype=np.float32) < rng.uniform(0.002, 0.02)
    hit: Pixels = np.where(struck[..., None], np.float32(rng.uniform(0, 255)), pixels)
    return hit


def _blend(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    height, width = pixels.shape[ROWS], pixels.shape[COLUMNS]
    donor = _donor(rng, pixels)
    mask = feathered_ellipse(rng, height, width, (0.25, 0.65), rng.uniform(1, 10))
    return pixels + mask * (donor - pixels)


def _donor(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    height, width = pixels.shape[ROWS], pixels.shape[COLUMNS]
    shift = (int(rng.integers(8, height - 8)), int(rng.integers(8, width - 8)))
    # Another part of the same picture, at other brightness and contrast; no operation of another kind.
    donor = np.roll(pixels, shift, (ROWS, COLUMNS))
    if rng.random() < 0.5:
        donor = donor[..., ::-1, :]
    return 128 + np.float32(rng.uniform(0.6, 1.4)) * (donor - 128) + np.float32(rng.uniform(-20, 20))


def _compress(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    down, across = (int(offset) for offset in rng.integers(1, 8, 2))
    return jpeg(pixels, int(rng.integers(35, 75)), down, across)


def _pattern(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    y = np.arange(pixels.shape[ROWS], dtype=np.float32)[:, None, None]
    x = np.arange(pixels.shape[COLUMNS], dtype=np.float32)[None, :, None]
    wave = np.zeros((1, 1, 1), np.float32)
    for _ in range(int(rng.integers(1, 3))):
        direction = rng.choice([0, np.pi / 2]) if rng.random() < 0.5 else rng.uniform(0, np.pi)
        turns = 2 * np.pi * rng.uniform(0.12, 0.48)
        phase = rng.uniform(0, 2 * np.pi)
        ramp = y * np.float32(turns * np.sin(direction)) + x * np.float32(turns * np.cos(direction))
        wave = wave + np.cos(ramp + np.float32(phase))
    return pixels + np.float32(rng.uniform(1.5, 5)) * wave


def _quantise(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    step = np.float32(rng.uniform(4, 14))
    quantised: Pixels = np.rint(pixels / step) * step
    return quantised


def _band_loss(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    """A random smooth loss over spatial frequency."""
    height, width = pixels.shape[ROWS], pixels.shape[COLUMNS]
    radius = np.hypot(fft.fftfreq(height)[:, None], fft.rfftfreq(width)[None])
    gain = np.interp(radius, np.linspace(0, 0.75, 7), [1, *rng.uniform(0.4, 1.0, 6)]).astype(np.float32)
    spectrum = fft.rfft2(pixels, axes=(ROWS, COLUMNS)) * gain[..., None]
    restored: Pixels = fft.irfft2(spectrum, s=(height, width), axes=(ROWS, COLUMNS)).astype(np.float32)
    return restored


def _tone(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    exponent = np.float32(np.exp(rng.choice([-1, 1]) * rng.uniform(0.2, 0.5)))
    share: Pixels = np.clip(pixels, 0, 255) / np.float32(255)
    curved: Pixels = np.float32(255) * share**exponent
    return curved


def _truncate(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    """Keep the low cosine coefficients of blocks of a random size, as a small latent does."""
    block = int(rng.choice([5, 6, 7, 10, 12]))
    kept = max(2, round(block * rng.uniform(0.35, 0.6)))
    low = np.cos(np.pi * np.outer(np.arange(kept), np.arange(block) + 0.5) / block) * np.sqrt(2 / block)
    low[0] /= np.sqrt(2)
    project = (low.T @ low).astype(np.float32)
    height, width = pixels.shape[ROWS], pixels.shape[COLUMNS]
    lead = [(0, 0)] * (pixels.ndim - 3)
    padded = np.pad(pixels, [*lead, (0, -height % block), (0, -width % block), (0, 0)], mode="reflect")
    rows, columns = padded.shape[ROWS] // block, padded.shape[COLUMNS] // block
    grid = padded.reshape(-1, rows, block, columns * block * 3)
    grid = project @ grid
    grid = grid.reshape(-1, rows * block, columns, block, 3)
    grid = np.swapaxes(np.swapaxes(grid, -1, -2) @ project, -1, -2)
    return grid.reshape(padded.shape)[..., :height, :width, :]


def _fill(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    """Wipe rectangles down to smooth colour, as a hole filled from around it."""
    height, width = pixels.shape[ROWS], pixels.shape[COLUMNS]
    smooth = _wipe_noise(rng, pixels)
    mask = np.zeros((height, width, 1), np.float32)
    for _ in range(int(rng.integers(1, 4))):
        tall, wide = (int(side * rng.uniform(0.2, 0.6)) for side in (height, width))
        top, left = int(rng.integers(0, height - tall)), int(rng.integers(0, width - wide))
        mask[top : top + tall, left : left + wide] = 1
    edge = gaussian(mask, rng.uniform(0.6, 2))
    return pixels + edge * (smooth - pixels)


def _wipe_noise(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    return gaussian(pixels, rng.uniform(2.5, 5))


OPERATIONS: dict[str, Operation] = {
    "resample": Operation(frozenset({"resampling"}), _resample),
    "transposed-convolution": Operation(frozenset({"resampling", "periodic"}), _transposed_convolution),
    "warp": Operation(frozenset({"resampling"}), _warp),
    "sharpen": Operation(frozenset({"sharpening"}), _sharpen),
    "blur": Operation(frozenset({"smoothing"}), _blur),
    "motion-blur": Operation(frozenset({"smoothing"}), _motion_blur),
    "median": Operation(frozenset({"smoothing"}), _median),
    "noise": Operation(frozenset({"noise"}), _noise),
    "coloured-noise": Operation(frozenset({"noise"}), _coloured_noise),
    "impulses": Operation(frozenset({"noise"}), _impulses),
    "blend": Operation(frozenset({"blending"}), _blend, _donor),
    "compress": Operation(frozenset({"compression"}), _compress),
    "pattern": Operation(frozenset({"periodic"}), _pattern),
    "quantise": Operation(frozenset({"quantisation"}), _quantise),
    "band-loss": Operation(frozenset({"spectral", "smoothing"}), _band_loss),
    "tone": Operation(frozenset({"tone"}), _tone),
    "truncate": Operation(frozenset({"autoencoding", "spectral"}), _truncate),
    "fill": Operation(frozenset({"inpainting", "blending", "smoothing"}), _fill, _wipe_noise),
}

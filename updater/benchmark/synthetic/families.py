"""The forgery families of the demonstration: each a different way in which forged pictures betray themselves.

A family takes a picture, uint8 [H, W, 3], and gives the forged picture and where it forged; what it draws
comes from the generator alone. `kinds` say what it does in the words that the pseudo-forgeries use too
(`updater.outliers.pseudo_forgeries`), so that while a family is measured as unseen, nothing of its kinds is
trained on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from PIL import Image

from updater.benchmark.synthetic.camera import CAMERAS, photograph
from updater.benchmark.synthetic.scenes import render
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
    to_picture,
)
from updater.outliers.local_forgeries import Forged


@dataclass(frozen=True)
class ForgeryFamily:
    """One way to forge, and the kinds of operation that it consists of."""

    name: str
    kinds: frozenset[str]
    local: bool
    """whether it forges a part of the picture by its own doing"""
    forge_where: Callable[[np.random.Generator, Picture], Forged]

    def forge(self, rng: np.random.Generator, picture: Picture) -> Picture:
        return self.forge_where(rng, picture).picture


def upsample(rng: np.random.Generator, picture: Picture) -> Forged:
    """A generator's last layer: a transposed convolution of stride 2, with the checkerboard that it leaves.

    Odena, Dumoulin and Olah, "Deconvolution and checkerboard artifacts", 2016.
    """
    height, width = picture.shape[:2]
    half = resize(picture.astype(np.float32), height // 2, width // 2, Image.Resampling.BOX)
    spread = np.zeros((height, width, 3), np.float32)
    spread[::2, ::2] = half
    # A tent would interpolate evenly; what is added gives the four output phases different gains.
    tent = np.outer([0.5, 1, 0.5], [0.5, 1, 0.5])
    uneven = rng.normal(0, 0.05, (3, 3))
    kernel = tent + uneven - uneven.mean()
    return _whole(correlate(spread, kernel.astype(np.float32)))


def blend(rng: np.random.Generator, picture: Picture) -> Forged:
    """A region of another picture, by another camera at a much higher speed, behind a feathered edge."""
    height, width = picture.shape[:2]
    camera = CAMERAS[int(rng.integers(len(CAMERAS)))]
    faster = replace(camera, gain=camera.gain * rng.uniform(7, 14))
    donor = photograph(rng, render(rng, height, width), faster).astype(np.float32)
    if not np.ptp(picture, axis=2).any():
        # Colour in a grey picture would be no forensic trace.
        donor = np.repeat(donor.mean(2, keepdims=True), 3, 2)
    mask = feathered_ellipse(rng, height, width, (0.3, 0.6), rng.uniform(3, 10))
    host = picture.astype(np.float32)
    # A forger matches the colours: the region keeps the mean that was there.
    weight = float(mask.sum()) + 1e-6
    wanted = (host * mask).sum((0, 1)) / weight
    mean = (donor * mask).sum((0, 1)) / weight
    return Forged(to_picture(host + mask * (donor - mean + wanted - host)), mask)


def inpaint(rng: np.random.Generator, picture: Picture) -> Forged:
    """Regions removed and filled from around them: smooth colour by diffusion, plus faint borrowed detail."""
    height, width = picture.shape[:2]
    host = picture.astype(np.float32)
    hole = np.zeros((height, width, 1), np.float32)
    while hole.mean() < 0.32:
        tall, wide = int(rng.integers(40, 110)), int(rng.integers(40, 110))
        top, left = int(rng.integers(0, height - tall)), int(rng.integers(0, width - wide))
        hole[top : top + tall, left : left + wide] = 1
    filled = _diffuse(host, hole)
    detail = host - gaussian(host, 1.5)
    shift = (int(rng.integers(16, height - 16)), int(rng.integers(16, width - 16)))
    filled += rng.uniform(0.0, 0.25) * np.roll(detail, shift, (ROWS, COLUMNS))
    edge = gaussian(hole, 1.0)
    return Forged(to_picture(host + edge * (filled - host)), edge)


def autoencode(rng: np.random.Generator, picture: Picture) -> Forged:
    """Re-synthesis through a small autoencoder: a truncated, quantised latent of overlapping patches."""
    basis = _latent_basis()[: int(rng.integers(36, 72))]
    pixels = picture.astype(np.float32)
    step = rng.uniform(10, 24)
    first, second = (_through_latent(pixels, basis, step, at) for at in (0, _PATCH // 2))
    return _whole((first + second) / np.float32(2))


def recompress(rng: np.random.Generator, picture: Picture) -> Forged:
    """An earlier, stronger JPEG compression whose 8×8 grid does not lie on that of the file."""
    down, across = (int(offset) for offset in rng.integers(2, 7, 2))
    return _whole(jpeg(picture.astype(np.float32), int(rng.integers(40, 66)), down, across))


def sharpen(rng: np.random.Generator, picture: Picture) -> Forged:
    """An unsharp mask that leaves halos along edges; its threshold spares most of the noise."""
    pixels = picture.astype(np.float32)
    detail = pixels - gaussian(pixels, rng.uniform(0.8, 1.5))
    threshold = rng.uniform(4, 6)
    strong = detail - np.clip(detail, -threshold, threshold)
    return _whole(pixels + np.float32(rng.uniform(1.6, 2.6)) * strong)


def periodic(rng: np.random.Generator, picture: Picture) -> Forged:
    """Narrow peaks in the spectrum, as stacks of upsampling leave them: a faint grid in rows and columns."""
    height, width = picture.shape[:2]
    period = rng.choice([3.0, 4.0, 5.0, 6.0])
    y, x = np.arange(height)[:, None, None], np.arange(width)[None, :, None]
    first, second = rng.uniform(0, 2 * np.pi, 2)
    wave = np.cos(2 * np.pi * y / period + first) + np.cos(2 * np.pi * x / period + second)
    return _whole(picture + (rng.uniform(2.2, 4.2) * wave).astype(np.float32))


def smooth(rng: np.random.Generator, picture: Picture) -> Forged:
    """A restoration filter that wipes the sensor's noise, and soft noise on top to hide that."""
    forged = median(picture.astype(np.float32))
    if rng.random() < 0.5:
        forged = median(forged)
    grain = gaussian(rng.standard_normal((*picture.shape[:2], 1), dtype=np.float32), 1.0)
    return _whole(forged + np.float32(rng.uniform(6, 11)) * grain)


FAMILIES: dict[str, ForgeryFamily] = {
    family.name: family
    for family in (
        ForgeryFamily("upsampled", frozenset({"resampling", "periodic"}), False, upsample),
        ForgeryFamily("blended", frozenset({"blending"}), True, blend),
        ForgeryFamily("inpainted", frozenset({"inpainting", "blending"}), True, inpaint),
        ForgeryFamily("autoencoded", frozenset({"autoencoding", "spectral"}), False, autoencode),
        ForgeryFamily("recompressed", frozenset({"compression"}), False, recompress),
        ForgeryFamily("sharpened", frozenset({"sharpening"}), False, sharpen),
        ForgeryFamily("periodic", frozenset({"periodic"}), False, periodic),
        ForgeryFamily("smoothed", frozenset({"smoothing", "noise"}), False, smooth),
    )
}


def _whole(pixels: Pixels) -> Forged:
    return Forged(to_picture(pixels), np.ones((*pixels.shape[:2], 1), np.float32))


def _diffuse(pixels: Pixels, hole: Pixels) -> Pixels:
    """Fill where `hole` is 1 by pulling known pixels up a pyramid and pushing their means back down."""
    known: Pixels = np.float32(1) - hole
    levels: list[tuple[Pixels, Pixels]] = [(pixels * known, known)]
    while min(levels[-1][0].shape[:2]) > 2:
        weighted, weight = levels[-1]
        levels.append((_halve(weighted), _halve(weight)))
    weighted, weight = levels[-1]
    filled = (weighted / np.maximum(weight, np.float32(1e-6))).astype(np.float32)
    for weighted, weight in reversed(levels[:-1]):
        height, width = weighted.shape[:2]
        below = gaussian(np.repeat(np.repeat(filled, 2, 0), 2, 1)[:height, :width], 0.8)
        # A pixel with any known part trusts that part, or the far mean of all would fog the hole.
        share = np.clip(4 * weight, 0, 1)
        filled = share * weighted / np.maximum(weight, np.float32(1e-6)) + (1 - share) * below
    return filled


def _halve(plane: Pixels) -> Pixels:
    # An odd border is padded with zeros, which weigh nothing in the weighted mean.
    even = np.pad(plane, ((0, plane.shape[0] % 2), (0, plane.shape[1] % 2), (0, 0)))
    halved: Pixels = (even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]) / np.float32(4)
    return halved


_PATCH = 12


@lru_cache(maxsize=1)
def _latent_basis() -> Pixels:
    """The first 72 principal components [72, patch²·3] of patches of scenes that no split contains."""
    rng = np.random.default_rng(20)
    shots = (photograph(rng, render(rng, 240, 240), camera).astype(np.float32) for camera in CAMERAS)
    stacked = np.concatenate([_patches(shot - 128) for shot in shots])
    values, vectors = np.linalg.eigh(stacked.T @ stacked)
    return np.ascontiguousarray(vectors[:, np.argsort(values)[::-1][:72]].T).astype(np.float32)


def _patches(pixels: Pixels) -> Pixels:
    rows, columns = pixels.shape[0] // _PATCH, pixels.shape[1] // _PATCH
    grid = pixels.reshape(rows, _PATCH, columns, _PATCH, 3).swapaxes(1, 2)
    return grid.reshape(rows * columns, _PATCH * _PATCH * 3)


def _through_latent(pixels: Pixels, basis: Pixels, step: float, at: int) -> Pixels:
    """Pixels of which each patch, on a grid moved by `at` pixels down and across, went through the latent."""
    edges = [(at, -(side + at) % _PATCH) for side in pixels.shape[:2]]
    padded = np.pad(pixels, (*edges, (0, 0)), mode="reflect") - 128
    latent = np.rint(_patches(padded) @ basis.T / np.float32(step)) * np.float32(step)
    rows, columns = padded.shape[0] // _PATCH, padded.shape[1] // _PATCH
    decoded = (latent @ basis).reshape(rows, columns, _PATCH, _PATCH, 3).swapaxes(1, 2)
    whole: Pixels = decoded.reshape(padded.shape) + np.float32(128)
    return whole[at : at + pixels.shape[0], at : at + pixels.shape[1]]

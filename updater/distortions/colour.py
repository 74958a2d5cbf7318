"""Perturbations of levels and colours, ten of our own for ForgeryNet. A level 1..5 indexes a table here.

Each takes and gives uint8 RGB [T, H, W, 3]; what it draws holds for all frames.
"""

import numpy as np
from numpy.typing import NDArray

from updater.distortions.distortion import Distortion
from updater.filters import Picture, Pixels, to_picture

BRIGHTNESS_STEPS = (10, 20, 30, 45, 60)
CONTRAST_FACTORS = (1.15, 1.3, 1.5, 1.8, 2.2)
GAMMA_EXPONENTS = (1.2, 1.4, 1.7, 2.1, 2.6)
SATURATION_FACTORS = (0.7, 0.5, 0.3, 0.15, 2.5)
HUE_DEGREES = (5, 10, 18, 30, 60)
RGB_SHIFT_STEPS = (5, 10, 18, 28, 40)
CHANNEL_ORDERS = ((0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1))
GREY_SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
CLAHE_CLIPS = (0.005, 0.01, 0.02, 0.03, 0.05)
POSTERISE_BITS = (6, 5, 4, 3, 2)

# ITU-R BT.601
_LUMA_WEIGHTS = np.array([0.299, 0.587, 0.114], np.float32)
_TO_YCBCR = np.array(
    [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], np.float64
)
_SIGNS = np.array([(1, 1, -1), (1, -1, 1), (1, -1, -1), (-1, 1, 1), (-1, 1, -1), (-1, -1, 1)], np.float32)


def brightness(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Raise or lower all levels. Draws the sign."""
    step = BRIGHTNESS_STEPS[level - 1] * rng.choice((-1, 1))
    return to_picture(frames.astype(np.float32) + np.float32(step))


def contrast(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Spread levels about their frame's mean, or narrow them. Draws which of the two."""
    factor = np.float32(CONTRAST_FACTORS[level - 1] ** rng.choice((-1, 1)))
    pixels = frames.astype(np.float32)
    mean = pixels.mean(axis=(1, 2, 3), keepdims=True)
    return to_picture(mean + factor * (pixels - mean))


def gamma(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Raise levels to a power or to its inverse. Draws which of the two."""
    exponent = GAMMA_EXPONENTS[level - 1] ** rng.choice((-1.0, 1.0))
    curve = to_picture((255 * (np.arange(256) / 255) ** exponent).astype(np.float32))
    return curve[frames]


def saturation(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Draw colours to their luma; level 5 draws them away from it. Draws nothing at random."""
    pixels = frames.astype(np.float32)
    luma = _luma(pixels)
    return to_picture(luma + np.float32(SATURATION_FACTORS[level - 1]) * (pixels - luma))


def hue(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Turn the plane of Cb and Cr (ITU-R BT.601) about its middle. Draws the sign."""
    angle = np.deg2rad(HUE_DEGREES[level - 1]) * rng.choice((-1, 1))
    cosine, sine = np.cos(angle), np.sin(angle)
    turn = np.array([[1, 0, 0], [0, cosine, -sine], [0, sine, cosine]])
    whole = np.linalg.inv(_TO_YCBCR) @ turn @ _TO_YCBCR
    return to_picture(frames.astype(np.float32) @ whole.T.astype(np.float32))


def rgb_shift(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Raise or lower each channel, not all three alike. Draws the three signs."""
    return to_picture(frames.astype(np.float32) + RGB_SHIFT_STEPS[level - 1] * rng.choice(_SIGNS))


def channel_shuffle(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Reorder the channels, one of the five other orders at each level. Draws nothing."""
    return np.ascontiguousarray(frames[..., CHANNEL_ORDERS[level - 1]])


def grey(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Mix colours with their own luma; level 5 is grey. Draws nothing."""
    pixels = frames.astype(np.float32)
    return to_picture(pixels + np.float32(GREY_SHARES[level - 1]) * (_luma(pixels) - pixels))


def clahe(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Equalise each frame's local histograms under a clip limit, by scikit-image. Draws nothing."""
    # An extra of its own: nothing else here needs it.
    from skimage.exposure import equalize_adapthist

    equal = [equalize_adapthist(frame, clip_limit=CLAHE_CLIPS[level - 1]) for frame in frames]
    return to_picture(np.stack(equal).astype(np.float32) * 255)


def posterise(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Keep the upper bits of each level alone. Draws nothing."""
    return frames & np.uint8(256 - 2 ** (8 - POSTERISE_BITS[level - 1]))


def _luma(pixels: Pixels) -> Pixels:
    """The luma of float32 RGB [..., 3] in levels, as [..., 1]."""
    weighed: NDArray[np.float32] = pixels @ _LUMA_WEIGHTS
    return weighed[..., None]


COLOUR = {
    "brightness": Distortion(brightness),
    "contrast": Distortion(contrast),
    "gamma": Distortion(gamma),
    "saturation": Distortion(saturation),
    "hue": Distortion(hue),
    "rgb_shift": Distortion(rgb_shift),
    "channel_shuffle": Distortion(channel_shuffle),
    "grey": Distortion(grey),
    "clahe": Distortion(clahe),
    "posterise": Distortion(posterise),
}

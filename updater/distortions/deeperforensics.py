"""The seven distortions of DeeperForensics-1.0, to the arithmetic of its published code.

Each takes and gives uint8 RGB [T, H, W, 3]; a level 1..5 indexes a table here.
"""

import numpy as np
from numpy.typing import NDArray

from updater.distortions.clip_writing import through_h264
from updater.distortions.distortion import Distortion
from updater.filters import COLUMNS, ROWS, Picture, Pixels, taps_along

SATURATION_FACTORS = (0.4, 0.3, 0.2, 0.1, 0.0)
CONTRAST_FACTORS = (0.85, 0.725, 0.6, 0.475, 0.35)
BLOCK_COUNTS = (16, 32, 48, 64, 80)
"""Blocks for each whole 256 pixels of the shorter side; a smaller frame gets none."""
BLOCK_SIDE_PX = 8
GREY = 128
NOISE_VARIANCES = (0.001, 0.002, 0.005, 0.01, 0.05)
"""Of a full scale of 1."""
BLUR_TAPS = (7, 9, 13, 17, 21)
JPEG_FACTORS = (2, 3, 4, 5, 6)
RATE_FACTORS = (30, 32, 35, 38, 40)

# OpenCV's fixed points: parts of a tap of its blur, and of a weight of its interpolation
_TAP_PARTS = 256
_WEIGHT_PARTS = 2048
_HALF = np.float32(0.5)
_LEVELS = np.float32(255)

Whole = NDArray[np.int32]


def color_saturation(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """CS: scale the chroma about its middle, the luma kept; level 5 is grey. Draws nothing."""
    factor = np.float32(SATURATION_FACTORS[level - 1])
    planes = to_ycbcr(frames)
    planes[..., 1:] = _HALF + (planes[..., 1:] - _HALF) * factor
    return to_rgb(planes).clip(0, 255).astype(np.uint8)


def color_contrast(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """CC: scale the levels, cut to whole ones. Draws nothing.

    The paper calls it contrast. It darkens, for nothing is held in the middle.
    """
    return (frames.astype(np.float32) * np.float32(CONTRAST_FACTORS[level - 1])).astype(np.uint8)


def block_wise(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """BW: lay grey blocks of 8 × 8 px. Draws the corners of each frame."""
    height, width = frames.shape[1:3]
    count = BLOCK_COUNTS[level - 1] * (min(height, width) // 256)
    corners_end = (height - BLOCK_SIDE_PX, width - BLOCK_SIDE_PX)
    covered = frames.copy()
    for frame in covered:
        cover(frame, rng.integers(0, corners_end, (count, 2)) if count else ())
    return covered


def cover(frame: Picture, corners: NDArray[np.int64] | tuple[()]) -> None:
    """Lay a grey block at each upper left corner (row, column) of uint8 [H, W, 3], in place."""
    for row, column in corners:
        frame[row : row + BLOCK_SIDE_PX, column : column + BLOCK_SIDE_PX] = GREY


def gaussian_noise_color(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """GNC: add white noise of one strength to Y, Cb and Cr. Draws each frame's, normal [H, W, 3]."""
    noisy = np.empty_like(frames)
    for number, frame in enumerate(frames):
        noisy[number] = add_noise(frame, rng.standard_normal(frame.shape, dtype=np.float32), level)
    return noisy


def add_noise(frame: Picture, noise: Pixels, level: int) -> Picture:
    """Add standard normal noise of Y, Cb, Cr, float32 [H, W, 3], at a level's strength to uint8 RGB."""
    planes = to_ycbcr(frame) / _LEVELS + np.float32(np.sqrt(NOISE_VARIANCES[level - 1])) * noise
    return to_rgb(planes * _LEVELS).clip(0, 255).astype(np.uint8)


def gaussian_blur(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """GB: a Gaussian of so many taps, σ a sixth of them, in 256ths as OpenCV has it. Draws nothing.

    Borders are mirrored without repeating them.
    """
    taps = _gaussian_taps(BLUR_TAPS[level - 1])
    # Every sum is a whole number below 2**24, which float32 holds.
    sums = taps_along(taps_along(frames.astype(np.float32), taps, COLUMNS), taps, ROWS)
    return np.floor(sums / _TAP_PARTS**2 + np.float32(0.5)).astype(np.uint8)


def _gaussian_taps(count: int) -> Pixels:
    """Whole numbers that sum to 256: a rounding error goes to the next tap, the rest to the middle."""
    places = np.arange(count) - (count - 1) / 2
    exact = np.exp(-0.5 * (places / (count / 6)) ** 2)
    exact *= _TAP_PARTS / exact.sum()
    taps, left = np.zeros(count, np.float32), 0.0
    for place in range(count // 2):
        due = exact[place] + left
        taps[place] = taps[-1 - place] = np.rint(due)
        left = due - taps[place]
    taps[count // 2] = _TAP_PARTS - taps.sum()
    return taps


def jpeg_compression(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """JPEG: no JPEG, but bilinear down by a factor without anti-aliasing, and back. Draws nothing.

    In whole numbers, as OpenCV interpolates bytes: weights of 11 bits, and a few bits below a level are kept
    between the two directions.
    """
    height, width = frames.shape[1:3]
    factor = JPEG_FACTORS[level - 1]
    return _bilinear(_bilinear(frames, max(1, height // factor), max(1, width // factor)), height, width)


def _bilinear(frames: Picture, height: int, width: int) -> Picture:
    """Interpolate between the two nearest rows and columns; the centres of pixels lie at halves."""
    held = frames.astype(np.int32)
    if frames.shape[1:3] == (2 * height, 2 * width):
        four = held[:, ::2] + held[:, 1::2]
        return ((four[:, :, ::2] + four[:, :, 1::2] + 2) >> 2).astype(np.uint8)
    left, right = _weigh_nearest(held, width, COLUMNS)
    above, below = _weigh_nearest((left + right) >> 4, height, ROWS)
    return (((above >> 16) + (below >> 16) + 2) >> 2).astype(np.uint8)


def _weigh_nearest(held: Whole, size: int, axis: int) -> tuple[Whole, Whole]:
    """The nearest two along an axis of each of `size` places, times their weights of 2048."""
    count = held.shape[axis]
    places = ((np.arange(size) + 0.5) * (count / size) - 0.5).astype(np.float32)
    if axis == COLUMNS:
        # Beyond the borders a column counts once; a row counts twice, in two parts that are cut apart.
        places = np.clip(places, 0, count - 1)
    first = np.floor(places).astype(int)
    edges = [1] * held.ndim
    edges[axis] = size
    share = (places - first).reshape(edges)
    first, second = np.clip(first, 0, count - 1), np.clip(first + 1, 0, count - 1)
    near = np.take(held, first, axis) * np.rint((1 - share) * _WEIGHT_PARTS).astype(np.int32)
    far = np.take(held, second, axis) * np.rint(share * _WEIGHT_PARTS).astype(np.int32)
    return near, far


def video_compression(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """VC: code the frames as one clip, H.264 (libx264, medium) at a constant rate factor. Draws nothing."""
    return through_h264(frames, RATE_FACTORS[level - 1])


def to_ycbcr(frames: Picture) -> Pixels:
    """Convert uint8 RGB [..., 3] to float32 Y, Cb, Cr [..., 3] in studio range, 255 as 1, as OpenCV does.

    Y = .299 R + .587 G + .114 B, Cb = .564 (B − Y) + .5, Cr = .713 (R − Y) + .5, brought to studio range and
    divided by 255. Products are added in OpenCV's order and before they are rounded, as processors with a
    fused multiply-add do it, so that results are equal to the bit.
    """
    levels = frames.astype(np.float32)
    red, green, blue = levels[..., 0], levels[..., 1], levels[..., 2]
    luma = _multiply_add(blue, 0.114, _multiply_add(green, 0.587, red * np.float32(0.299)))
    planes = np.empty_like(levels)
    planes[..., 0] = (luma * np.float32(219) + np.float32(16)) / _LEVELS
    for channel, (colour, factor) in enumerate(((blue, 0.564), (red, 0.713)), 1):
        chroma = _multiply_add(colour - luma, factor, _HALF)
        planes[..., channel] = (chroma * np.float32(224) + np.float32(16)) / _LEVELS
    return planes


def to_rgb(planes: Pixels) -> Pixels:
    """Convert back to float32 RGB [..., 3] in levels, neither rounded nor clipped."""
    luma = (planes[..., 0] * _LEVELS - np.float32(16)) / np.float32(219)
    blueness = (planes[..., 1] * _LEVELS - np.float32(16)) / np.float32(224) - _HALF
    redness = (planes[..., 2] * _LEVELS - np.float32(16)) / np.float32(224) - _HALF
    levels = np.empty_like(planes)
    levels[..., 0] = _multiply_add(redness, 1.403, luma)
    levels[..., 1] = _multiply_add(redness, -0.714, _multiply_add(blueness, -0.344, luma))
    levels[..., 2] = _multiply_add(blueness, 1.773, luma)
    return levels


def _multiply_add(values: Pixels, factor: float, summand: Pixels | np.float32) -> Pixels:
    """Multiply by a float32 factor and add, rounding once: in float64 the product is exact."""
    product = values * np.float64(np.float32(factor))
    product += summand
    fused: Pixels = product.astype(np.float32)
    return fused


DEEPERFORENSICS = {
    "CS": Distortion(color_saturation),
    "CC": Distortion(color_contrast),
    "BW": Distortion(block_wise, each_frame=True),
    "GNC": Distortion(gaussian_noise_color, each_frame=True),
    "GB": Distortion(gaussian_blur),
    "JPEG": Distortion(jpeg_compression),
    "VC": Distortion(video_compression, rate_factors=RATE_FACTORS),
}
"""The seven, by the codes of the published metas. They are upper case; "JPEG" is not our "jpeg"."""

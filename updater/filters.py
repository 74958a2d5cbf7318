"""Fast image filters that forgeries and pseudo-forgeries are built from.

Every filter takes and gives float32 pixels in levels (0..255, not clipped) with the axes
[..., height, width, channel], so a stack of crops is filtered as one array. Borders are mirrored.
"""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.float32]
Picture = NDArray[np.uint8]

ROWS, COLUMNS = -3, -2


def to_picture(pixels: Pixels) -> Picture:
    """Round to whole levels and clip to 0..255."""
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def taps_along(pixels: Pixels, taps: NDArray[np.float32], axis: int) -> Pixels:
    """Correlate one axis with an odd number of taps.

    Whole shifted arrays are summed: `scipy.ndimage.correlate1d` takes two to four times as long. Picture by
    picture, since what does not fit the processor's cache takes twice as long.
    """
    if pixels.ndim > 3:
        return np.stack([taps_along(plane, taps, axis) for plane in pixels])
    reach, length = len(taps) // 2, pixels.shape[axis]
    edges = [(0, 0)] * pixels.ndim
    edges[axis] = (reach, reach)
    padded = np.pad(pixels, edges, mode="reflect")
    window = [slice(None)] * pixels.ndim
    total, weighted = np.zeros_like(pixels), np.empty_like(pixels)
    for start, tap in enumerate(taps):
        window[axis] = slice(start, start + length)
        total += np.multiply(padded[tuple(window)], tap, out=weighted)
    return total


def gaussian(pixels: Pixels, sigma_px: float) -> Pixels:
    """Blur rows and columns by a Gaussian cut off at three standard deviations."""
    reach = max(1, int(np.ceil(3 * sigma_px)))
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma_px) ** 2).astype(np.float32)
    taps /= taps.sum()
    return taps_along(taps_along(pixels, taps, ROWS), taps, COLUMNS)


def correlate(pixels: Pixels, kernel: NDArray[np.float32]) -> Pixels:
    """Correlate with a small kernel [odd, odd]; taps of zero cost nothing."""
    down, across = kernel.shape[0] // 2, kernel.shape[1] // 2
    lead = [(0, 0)] * (pixels.ndim - 3)
    padded = np.pad(pixels, [*lead, (down, down), (across, across), (0, 0)], mode="reflect")
    height, width = pixels.shape[ROWS], pixels.shape[COLUMNS]
    total = np.zeros_like(pixels)
    for row, column in zip(*np.nonzero(kernel), strict=True):
        total += kernel[row, column] * padded[..., row : row + height, column : column + width, :]
    return total


def median(pixels: Pixels) -> Pixels:
    """Median of each 3x3 neighbourhood, on whole levels.

    A sorting network on bytes: `scipy.ndimage.median_filter` takes about thirty times as long.
    """
    lead = [(0, 0)] * (pixels.ndim - 3)
    padded = np.pad(to_picture(pixels), [*lead, (1, 1), (1, 1), (0, 0)], mode="reflect")
    rows = [padded[..., i : padded.shape[ROWS] - 2 + i, :, :] for i in range(3)]
    low, middle, high = _sort3(*rows)
    width = pixels.shape[COLUMNS]
    lows, middles, highs = ([plane[..., i : i + width, :] for i in range(3)] for plane in (low, middle, high))
    # The median of nine is the median of: the largest low, the median middle, the smallest high.
    largest_low = np.maximum(np.maximum(lows[0], lows[1]), lows[2])
    smallest_high = np.minimum(np.minimum(highs[0], highs[1]), highs[2])
    _, middle_middle, _ = _sort3(*middles)
    _, result, _ = _sort3(largest_low, middle_middle, smallest_high)
    return result.astype(np.float32)


def _sort3(a: Picture, b: Picture, c: Picture) -> tuple[Picture, Picture, Picture]:
    a, b = np.minimum(a, b), np.maximum(a, b)
    b, c = np.minimum(b, c), np.maximum(b, c)
    a, b = np.minimum(a, b), np.maximum(a, b)
    return a, b, c


def resize(pixels: Pixels, height: int, width: int, method: Image.Resampling) -> Pixels:
    """Interpolate to height × width on whole levels; shrinking is free of aliases."""
    flat = to_picture(pixels).reshape(-1, *pixels.shape[ROWS:])
    resized = [np.asarray(Image.fromarray(plane).resize((width, height), method)) for plane in flat]
    return np.stack(resized).reshape(*pixels.shape[:ROWS], height, width, 3).astype(np.float32)


def jpeg(pixels: Pixels, quality: int, down: int = 0, across: int = 0) -> Pixels:
    """Compress and decompress, the 8×8 grid moved by `down` and `across` pixels (0..7)."""
    lead = [(0, 0)] * (pixels.ndim - 3)
    edges = [*lead, (8 - down if down else 0, 0), (8 - across if across else 0, 0), (0, 0)]
    padded = np.pad(to_picture(pixels), edges, mode="reflect")
    decoded = []
    for plane in padded.reshape(-1, *padded.shape[ROWS:]):
        buffer = io.BytesIO()
        Image.fromarray(plane).save(buffer, "JPEG", quality=quality)
        decoded.append(np.asarray(Image.open(buffer, formats=("JPEG",))))
    whole = np.stack(decoded).reshape(padded.shape)
    height, width = pixels.shape[ROWS], pixels.shape[COLUMNS]
    return whole[..., whole.shape[ROWS] - height :, whole.shape[COLUMNS] - width :, :].astype(np.float32)


def feathered_ellipse(
    rng: np.random.Generator, height: int, width: int, share: tuple[float, float], feather_px: float
) -> Pixels:
    """A soft mask [height, width, 1] of one tilted ellipse inside the picture.

    `share` bounds the part of the area that it covers; the edge goes from 1 to 0 over about
    `feather_px` pixels.
    """
    area = rng.uniform(*share) * height * width
    ratio = float(np.exp(rng.uniform(-0.35, 0.35)))
    tall, wide = np.sqrt(area / np.pi * ratio), np.sqrt(area / np.pi / ratio)
    tilt = rng.uniform(0, np.pi)
    # Near the middle, so that little of the asked-for area falls outside.
    y = np.arange(height, dtype=np.float32)[:, None] - height * rng.uniform(0.42, 0.58)
    x = np.arange(width, dtype=np.float32)[None] - width * rng.uniform(0.42, 0.58)
    cosine, sine = float(np.cos(tilt)), float(np.sin(tilt))
    u = (y * cosine + x * sine) / float(tall)
    v = (x * cosine - y * sine) / float(wide)
    inside_px = (1 - np.sqrt(u * u + v * v)) * float(min(tall, wide))
    mask: Pixels = np.clip(inside_px / feather_px + 0.5, 0, 1)[..., None].astype(np.float32)
    return mask

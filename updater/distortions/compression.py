"""Perturbations by coding and resampling, seven of our own for ForgeryNet. A level 1..5 indexes a table here.

Each takes and gives uint8 RGB [T, H, W, 3] and draws nothing; all but H.264 take each frame by itself.
"""

import io
from typing import Any

import numpy as np
from PIL import Image

from updater import filters
from updater.distortions.clip_writing import through_h264
from updater.distortions.distortion import Distortion
from updater.filters import Picture, resize, to_picture

JPEG_QUALITIES = (60, 45, 30, 20, 12)
WEBP_QUALITIES = (50, 35, 22, 12, 5)
JPEG2000_RATIOS = (20, 35, 55, 80, 120)
H264_RATE_FACTORS = (28, 32, 36, 40, 44)
"""Above what DeeperForensics' VC has."""
FIRST_JPEG_QUALITIES = (70, 55, 45, 35, 25)
SECOND_JPEG_QUALITY = 90
GRID_MOVED_PX = 4
RESCALE_FACTORS = (1.5, 2, 3, 4, 6)
RESCALE_NEAREST_FACTORS = (1.5, 2, 3, 4, 5)
_MOST_RESOLUTIONS = 6  # JPEG 2000's usual number; each halves the sides


def jpeg(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Code as JPEG, by Pillow's default tables and subsampling."""
    return to_picture(filters.jpeg(frames.astype(np.float32), JPEG_QUALITIES[level - 1]))


def webp(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Code as lossy WebP."""
    return _through(frames, "WEBP", quality=WEBP_QUALITIES[level - 1])


def jpeg2000(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Code as JPEG 2000 with irreversible wavelets, at a ratio of sizes."""
    resolutions = min(_MOST_RESOLUTIONS, min(frames.shape[1:3]).bit_length())
    return _through(
        frames,
        "JPEG2000",
        irreversible=True,
        quality_mode="rates",
        quality_layers=[JPEG2000_RATIOS[level - 1]],
        num_resolutions=resolutions,
    )


def h264(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Code the frames as one clip, H.264 at a constant rate factor."""
    return through_h264(frames, H264_RATE_FACTORS[level - 1])


def double_jpeg(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Code as JPEG twice: at a low quality, then at a high one whose grid lies four pixels on."""
    once = filters.jpeg(frames.astype(np.float32), FIRST_JPEG_QUALITIES[level - 1])
    return to_picture(filters.jpeg(once, SECOND_JPEG_QUALITY, GRID_MOVED_PX, GRID_MOVED_PX))


def rescale(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Resize: smaller by averaging areas, and back by bicubic interpolation."""
    return _rescale(frames, RESCALE_FACTORS[level - 1], Image.Resampling.BOX, Image.Resampling.BICUBIC)


def rescale_nearest(rng: np.random.Generator, frames: Picture, level: int) -> Picture:
    """Resize: smaller and back by the nearest pixel."""
    nearest = Image.Resampling.NEAREST
    return _rescale(frames, RESCALE_NEAREST_FACTORS[level - 1], nearest, nearest)


def _rescale(frames: Picture, factor: float, down: Image.Resampling, up: Image.Resampling) -> Picture:
    height, width = frames.shape[1:3]
    low, narrow = max(1, round(height / factor)), max(1, round(width / factor))
    return to_picture(resize(resize(frames.astype(np.float32), low, narrow, down), height, width, up))


def _through(frames: Picture, form: str, **options: Any) -> Picture:
    """Code and decode each frame as one of Pillow's formats."""
    decoded = np.empty_like(frames)
    for number, frame in enumerate(frames):
        buffer = io.BytesIO()
        Image.fromarray(frame).save(buffer, form, **options)
        decoded[number] = np.asarray(Image.open(buffer, formats=(form,)).convert("RGB"))
    return decoded


COMPRESSION = {
    "jpeg": Distortion(jpeg),
    "webp": Distortion(webp),
    "jpeg2000": Distortion(jpeg2000),
    "h264": Distortion(h264, rate_factors=H264_RATE_FACTORS),
    "double_jpeg": Distortion(double_jpeg),
    "rescale": Distortion(rescale),
    "rescale_nearest": Distortion(rescale_nearest),
}

"""Clips simulated from real pictures: what the head over time learns from where nobody has forged a video.

A crop of a real picture is filmed: it is seen through a window that moves along a smooth path, mirrored
beyond its edges, with noise anew in each frame. A forged clip has pseudo-forgeries in one to three
stretches, in one region that moves along. Most clips were coded once as H.264 before they were forged, as
films were; all are coded after it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from updater.distortions.media.h264 import through_h264
from updater.filters import Picture, gaussian, to_picture
from updater.outliers.local_forgeries import forge_locally
from updater.outliers.masks import Forged
from updater.scan.clips import ScannedClip, scanned
from updater.scan.moving import FRAMES, Path, forged_along, shifted, smooth_path
from updater.scan.stretches import Stretch, draw_stretches
from updater.training.crop_rows import Crops

CODED_BEFORE_SHARE = 0.75
RATE_FACTORS_BEFORE, RATE_FACTORS_AFTER = (16, 26), (18, 28)
NOISE_LEVELS, NOISE_BLUR_PX = (0.5, 3.0), (0.3, 0.7)
REACH = 3 / 16
"""how far the window, and with it the forged region, may move from its middle, in sides of a crop"""


@dataclass(frozen=True)
class SimulatedClip:
    """T frames of one clip, uint8 [T, S, S, 3], and what of it is forged: nothing of a real one."""

    frames: Picture
    segments: tuple[Stretch, ...]


def simulate_clip(
    rng: np.random.Generator, crop: Picture, without: frozenset[str], *, forged: bool
) -> SimulatedClip:
    """Film a real crop, uint8 [S, S, 3], and forge stretches of that where asked.

    without: kinds of operations that pseudo-forgeries are not to have. Raises ValueError where none is left.
    """
    moves = smooth_path(rng, FRAMES, round(REACH * crop.shape[0]))
    frames = _filmed(rng, crop, moves)
    if rng.random() < CODED_BEFORE_SHARE:
        frames = through_h264(frames, _drawn(rng, RATE_FACTORS_BEFORE))
    segments: tuple[Stretch, ...] = ()
    if forged:
        segments = draw_stretches(rng, FRAMES)
        # What stands in the scene goes the other way than the window does.
        frames = forged_along(rng, frames, segments, -moves, partial(_pseudo_forged, without))
    return SimulatedClip(through_h264(frames, _drawn(rng, RATE_FACTORS_AFTER)), segments)


def simulate_clips(
    crops: Crops,
    features: Callable[[Picture], np.ndarray[tuple[int, int], np.dtype[np.float32]]],
    count: int,
    forged_share: float,
    *,
    without: frozenset[str],
    seed: tuple[int, ...],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ScannedClip]:
    """Simulate `count` clips of real crops, uint8 [T, S, S, 3], as the head over time sees them.

    features: gives the raw features of frames, float32 [N, F], of uint8 [N, S, S, 3]. The clips of one seed
    are the first of more. Raises ValueError where there are no crops.
    """
    if not len(crops):
        raise ValueError("clips are simulated from real pictures, and there are none")
    clips = []
    for number in range(count):
        rng = np.random.default_rng([*seed, number])
        crop = crops[rng.integers(len(crops), size=1)][0]
        # Both kinds in turn, so that any number of clips has its share of each.
        forged = int((number + 1) * forged_share) > int(number * forged_share)
        made = simulate_clip(rng, crop, without, forged=forged)
        clips.append(scanned(features(made.frames), made.segments))
        progress(number + 1, count)
    return clips


def _filmed(rng: np.random.Generator, crop: Picture, moves: Path) -> Picture:
    """What a camera makes of a crop through a window that moves, uint8 [T, S, S, 3].

    The variance of its noise is linear in the light (Foi et al. 2008).
    """
    light = np.stack([shifted(crop, move) for move in moves]).astype(np.float32)
    grain = gaussian(rng.standard_normal(light.shape, dtype=np.float32), rng.uniform(*NOISE_BLUR_PX))
    deviation = np.float32(rng.uniform(*NOISE_LEVELS) / grain.std())
    floor = np.float32(rng.uniform(0.2, 0.8))
    return to_picture(light + grain * deviation * np.sqrt(floor + (1 - floor) * light / 128))


def _pseudo_forged(without: frozenset[str], rng: np.random.Generator, picture: Picture) -> Forged:
    made = forge_locally(rng, picture[None], without)
    return Forged(made.crops[0], made.masks[0, ..., None])


def _drawn(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    return int(rng.integers(bounds[0], bounds[1] + 1))

"""Clips simulated from real pictures: training data of the head over time where nobody has forged a video.

A crop of a real picture is filmed: it is seen through a window that moves along a smooth path, mirrored
beyond its edges, with noise anew in each frame. A forged clip has pseudo-forgeries in one to three
stretches, in one region that moves along. Most clips were coded once as H.264 before they were forged, as
films were; all are coded after it.

Real videos of a library are forged in the same way. Whoever made one coded it once. Some of those that stay
real are coded once more too, so that this is no clue.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from updater.data.real_clips import RealClips
from updater.distortions.clip_writing import through_h264
from updater.filters import Picture, gaussian, to_picture
from updater.outliers.local_forgeries import Forged, forge_locally
from updater.progress import Steps, no_steps
from updater.scan.clips import (
    FRAMES,
    Moves,
    ScannedClip,
    Stretch,
    draw_stretches,
    forged_along,
    make_clip,
    shift_frame,
    smooth_path,
)
from updater.training.crop_rows import Crops, in_turn

CODED_BEFORE_SHARE = 0.75
RATE_FACTORS_BEFORE, RATE_FACTORS_AFTER = (16, 26), (18, 28)
NOISE_LEVELS, NOISE_BLUR_PX = (0.5, 3.0), (0.3, 0.7)
REACH = 3 / 16
"""how far the window, and with it the forged region, may move from its middle, in sides of a crop"""

Features = Callable[[Picture], NDArray[np.float32]]
"""Gives the raw features of frames, float32 [N, F], of uint8 [N, S, S, 3]; threads may share it."""


@dataclass(frozen=True)
class SimulatedClip:
    """T frames of one clip, uint8 [T, S, S, 3], and its forged part: none of a real one."""

    frames: Picture
    segments: tuple[Stretch, ...]


def simulate_clip(
    rng: np.random.Generator, crop: Picture, without: frozenset[str], *, forged: bool
) -> SimulatedClip:
    """Film a real crop, uint8 [S, S, 3], and forge stretches of that where asked.

    without: kinds of operations that pseudo-forgeries are not to have. Raises ValueError where none is left.
    """
    moves = smooth_path(rng, FRAMES, round(REACH * crop.shape[0]))
    frames = _film_crop(rng, crop, moves)
    if rng.random() < CODED_BEFORE_SHARE:
        frames = through_h264(frames, _draw_int(rng, RATE_FACTORS_BEFORE))
    segments: tuple[Stretch, ...] = ()
    if forged:
        # What stands in the scene goes the other way than the window does.
        frames, segments = pseudo_forged_along(rng, frames, -moves, without)
    return SimulatedClip(coded_after(rng, frames), segments)


def simulate_clips(
    crops: Crops,
    features: Features,
    count: int,
    forged_share: float,
    *,
    without: frozenset[str],
    seed: tuple[int, ...],
    progress: Steps = no_steps,
) -> list[ScannedClip]:
    """Simulate `count` clips of real crops, uint8 [T, S, S, 3], as the head over time sees them.

    The clips of one seed are the first of more. Raises ValueError where there are no crops.
    """
    if not len(crops):
        raise ValueError("clips are simulated from real pictures, and there are none")

    def make(rng: np.random.Generator, number: int) -> SimulatedClip:
        crop = crops[rng.integers(len(crops), size=1)][0]
        # Both kinds in turn, so that any number of clips has its share of each.
        forged = int((number + 1) * forged_share) > int(number * forged_share)
        return simulate_clip(rng, crop, without, forged=forged)

    return made_clips(make, features, count, seed=seed, progress=progress)


def made_clips(
    make: Callable[[np.random.Generator, int], SimulatedClip],
    features: Features,
    count: int,
    *,
    seed: tuple[int, ...],
    progress: Steps,
) -> list[ScannedClip]:
    """Make clips by their numbers, each with draws of its own, as the head over time sees them.

    Some at once, one a thread.
    """

    def clip_of(number: int) -> ScannedClip:
        made = make(np.random.default_rng([*seed, number]), number)
        return make_clip(features(made.frames), made.segments)

    clips = []
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:
        for clip in in_turn(pool, clip_of, range(count), 2 * threads):
            clips.append(clip)
            progress(len(clips), count)
    return clips


def pseudo_forged_along(
    rng: np.random.Generator, frames: Picture, moves: Moves, without: frozenset[str]
) -> tuple[Picture, tuple[Stretch, ...]]:
    """Forge stretches of frames, uint8 [T, S, S, 3], in one region that moves by `moves`; and which they are.

    Raises ValueError where no operation is left.
    """
    segments = draw_stretches(rng, len(frames))
    return forged_along(rng, frames, segments, moves, partial(_pseudo_forged, without)), segments


def coded_after(rng: np.random.Generator, frames: Picture) -> Picture:
    """Code frames, uint8 [T, S, S, 3], as people do who hand a film on."""
    return through_h264(frames, _draw_int(rng, RATE_FACTORS_AFTER))


def _film_crop(rng: np.random.Generator, crop: Picture, moves: Moves) -> Picture:
    """Frames of a crop through a moving window, as a camera films them, uint8 [T, S, S, 3].

    The variance of its noise is linear in the light (Foi et al. 2008).
    """
    light = np.stack([shift_frame(crop, move) for move in moves]).astype(np.float32)
    grain = gaussian(rng.standard_normal(light.shape, dtype=np.float32), rng.uniform(*NOISE_BLUR_PX))
    deviation = np.float32(rng.uniform(*NOISE_LEVELS) / grain.std())
    floor = np.float32(rng.uniform(0.2, 0.8))
    return to_picture(light + grain * deviation * np.sqrt(floor + (1 - floor) * light / 128))


def _pseudo_forged(without: frozenset[str], rng: np.random.Generator, picture: Picture) -> Forged:
    made = forge_locally(rng, picture[None], without)
    return Forged(made.crops[0], made.masks[0, ..., None])


def _draw_int(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    return int(rng.integers(bounds[0], bounds[1] + 1))


CODED_AGAIN_SHARE = 0.5


def library_clip(
    rng: np.random.Generator,
    frames: Picture,
    without: frozenset[str],
    *,
    forged: bool,
    coded_again_share: float = CODED_AGAIN_SHARE,
) -> SimulatedClip:
    """Make a clip of a real video's frames, uint8 [T, S, S, 3], T >= 18; a forged one where asked.

    without: kinds of operations that pseudo-forgeries are not to have. Raises ValueError where none is left.
    """
    if not forged:
        again = rng.random() < coded_again_share
        return SimulatedClip(coded_after(rng, frames) if again else frames, ())
    moves = smooth_path(rng, len(frames), round(REACH * frames.shape[1]))
    changed, segments = pseudo_forged_along(rng, frames, moves, without)
    return SimulatedClip(coded_after(rng, changed), segments)


def library_clips(
    videos: RealClips,
    numbers: Sequence[int],
    features: Features,
    count: int,
    *,
    without: frozenset[str],
    seed: tuple[int, ...],
    coded_again_share: float = CODED_AGAIN_SHARE,
    progress: Steps = no_steps,
) -> list[ScannedClip]:
    """Make `count` clips of some videos, at least one, as the head over time sees them.

    numbers: which videos, which are taken in turn. Of twice as many clips as videos, each video has a real
    one and a forged one. features: as `simulate_clips` takes them.
    """

    def make(rng: np.random.Generator, number: int) -> SimulatedClip:
        turn, place = divmod(number, len(numbers))
        return library_clip(
            rng,
            videos[numbers[place]],
            without,
            forged=bool((turn + place) % 2),
            coded_again_share=coded_again_share,
        )

    return made_clips(make, features, count, seed=seed, progress=progress)


def real_clips(
    videos: RealClips, numbers: Sequence[int], features: Features, progress: Steps = no_steps
) -> list[ScannedClip]:
    """Return some real videos as they are, as the head over time sees them."""

    def make(_: np.random.Generator, number: int) -> SimulatedClip:
        return SimulatedClip(videos[numbers[number]], ())

    return made_clips(make, features, len(numbers), seed=(), progress=progress)

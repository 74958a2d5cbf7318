"""Clips of real videos: as they are, or with pseudo-forged stretches, beside those simulated from pictures.

A real video was coded once by whoever made it. It is forged in one to three stretches, in one region that
moves along, and coded after that as H.264; some real ones are coded once more too, so that this is no clue.
"""

from collections.abc import Callable, Sequence

import numpy as np

from updater.data.real_clips import RealClips
from updater.filters import Picture
from updater.scan.clips import ScannedClip
from updater.scan.moving import smooth_path
from updater.scan.simulated import (
    REACH,
    Features,
    SimulatedClip,
    coded_after,
    made_clips,
    pseudo_forged_along,
)

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
    progress: Callable[[int, int], None] = lambda done, total: None,
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
    videos: RealClips,
    numbers: Sequence[int],
    features: Features,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ScannedClip]:
    """Return some real videos as they are, as the head over time sees them."""

    def make(_: np.random.Generator, number: int) -> SimulatedClip:
        return SimulatedClip(videos[numbers[number]], ())

    return made_clips(make, features, len(numbers), seed=(), progress=progress)

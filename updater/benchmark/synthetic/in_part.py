"""Media of the synthetic stream that are forged in part, each beside the truth of where and when.

A picture is forged in a region: by a family that forges a part by its own doing, or behind a random mask. The
file is made by the stream's own last step.

A clip is forged in stretches. It is a scene larger than the frame, seen through a window that moves along a
smooth path by one camera in one state, with noise anew in each frame. Most clips are coded as H.264 before
they are forged, and all after it. A forged clip has one family, whose drawn strengths and region are the
clip's: the region moves along.

A number gives the same bytes always, as in `stream`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from updater.benchmark.synthetic import camera
from updater.benchmark.synthetic.camera import CAMERAS, film
from updater.benchmark.synthetic.families import FAMILIES, ForgeryFamily
from updater.benchmark.synthetic.scenes import render
from updater.benchmark.synthetic.stream import REAL, MediaSample, drawn_by, made_in_parallel, name_of, source
from updater.distortions.clip_writing import through_h264, to_h264
from updater.filters import Picture
from updater.outliers.local_forgeries import Forged, kept_behind, random_mask
from updater.scan.clips import Stretch, draw_stretches, forged_along, smooth_path

PICTURE_PX = 256
PHOTOGRAPH_SHARE = 0.25
FRAMES, SIDE_PX = 96, 128
REACH_PX = 24
"""how far the window, and with it the forged region, may move from its middle"""
CODED_BEFORE_SHARE = 0.75
RATE_FACTORS_BEFORE, RATE_FACTORS_AFTER = (16, 26), (18, 28)


@dataclass(frozen=True)
class LocalSample(MediaSample):
    """A picture with its truth."""

    camera: int | None
    """the number of the camera in CAMERAS; None of a photograph"""
    mask: NDArray[np.uint8]
    """[H, W], 0..255: how much of each pixel is forged; 0 throughout of a real picture"""


@dataclass(frozen=True)
class ClipSample(MediaSample):
    """A clip with its truth."""

    camera: int
    frames: int
    segments: tuple[Stretch, ...]
    """what is forged, in order; none of a real clip"""


def forge_in_part(family: ForgeryFamily, rng: np.random.Generator, picture: Picture) -> Forged:
    """Forge a part of a picture: the family's own part, or the part behind a random mask."""
    forged = family.forge_where(rng, picture)
    if family.local:
        return forged
    mask = random_mask(rng, *picture.shape[:2])
    return Forged(kept_behind(mask, picture, forged.picture), mask)


def make_local(
    seed: int, split: str, family: str, index: int, photographs: float = PHOTOGRAPH_SHARE
) -> LocalSample:
    """The `index`-th picture of a family ("real" or a name in FAMILIES) of one split.

    photographs: how many in one are pieces of photographs, 0..1. Raises KeyError for an unknown family or
    split.
    """
    forger, rng = drawn_by(seed, split, family, index, "local-")
    base = source(rng, split, PICTURE_PX, PICTURE_PX, photographs=photographs)
    picture, mask = base.picture, np.zeros((PICTURE_PX, PICTURE_PX), np.uint8)
    if forger is not None:
        forged = forge_in_part(forger, rng, picture)
        picture, mask = forged.picture, np.rint(255 * forged.mask[..., 0]).astype(np.uint8)
    data, extension = camera.write(rng, base.picture, picture)
    return LocalSample(data, family, base.group, name_of(data, extension), base.camera, mask)


def make_clip(seed: int, split: str, family: str, index: int) -> ClipSample:
    """Render the `index`-th clip of a family ("real" or a name in FAMILIES) of one split.

    Bytes are equal on machines with the same pinned packages and vector instructions. Raises KeyError for an
    unknown family or split.
    """
    forger, rng = drawn_by(seed, split, family, index, "clip-")
    side = SIDE_PX + 2 * REACH_PX
    scene, number = rng.bytes(8).hex(), int(rng.integers(len(CAMERAS)))
    moves = smooth_path(rng, FRAMES, REACH_PX)
    subject, state = render(rng, side, side), int(rng.integers(2**63))
    windows = (subject[:, y : y + SIDE_PX, x : x + SIDE_PX] for y, x in moves + REACH_PX)
    frames = film(rng, CAMERAS[number], state, windows)
    if rng.random() < CODED_BEFORE_SHARE:
        frames = through_h264(frames, int(rng.integers(*RATE_FACTORS_BEFORE, endpoint=True)))
    segments: tuple[Stretch, ...] = ()
    if forger is not None:
        segments = draw_stretches(rng, len(frames))
        # What stands in the scene goes the other way than the window does.
        frames = forged_along(rng, frames, segments, -moves, partial(forge_in_part, forger))
    data = to_h264(frames, int(rng.integers(*RATE_FACTORS_AFTER, endpoint=True)), "mp4")
    return ClipSample(data, family, f"scene-{scene}", name_of(data, "mp4"), number, len(frames), segments)


def numbers_of(count: int, reals: int) -> list[tuple[str, int]]:
    """Share `count` media out, (family, index) each: so many reals, the others of all families."""
    families = tuple(FAMILIES)
    forged = [(families[i % len(families)], i // len(families)) for i in range(count - reals)]
    return [(REAL, index) for index in range(reals)] + forged


def make_locals(
    seed: int,
    split: str,
    wanted: Sequence[tuple[str, int]],
    *,
    processes: int,
    photographs: float = PHOTOGRAPH_SHARE,
) -> Iterator[LocalSample]:
    """The pictures of `wanted`, (family, index) each, made as `made_in_parallel` makes them."""
    jobs = [(seed, split, family, index, photographs) for family, index in wanted]
    return made_in_parallel(make_local, jobs, processes=processes)

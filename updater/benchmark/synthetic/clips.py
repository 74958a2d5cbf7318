"""Rendered clips that are forged in stretches, each beside the truth of when.

A clip is a scene larger than the frame, seen through a window that moves along a smooth path by one camera in
one state, with noise anew in each frame. Most clips are coded as H.264 before they are forged, and all after
it. A forged clip has one family, whose drawn strengths and region are the clip's: the region moves along.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np

from updater.benchmark.synthetic.camera import CAMERAS, photograph
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.local_stills import forge_in_part
from updater.benchmark.synthetic.scenes import render
from updater.benchmark.synthetic.stream import REAL, SPLITS, MediaSample
from updater.distortions.clip_writing import through_h264, to_h264
from updater.filters import Picture
from updater.scan.clips import Moves, Stretch, draw_stretches, forged_along, smooth_path

FRAMES, SIDE_PX = 96, 128
REACH_PX = 24
"""how far the window, and with it the forged region, may move from its middle"""
CODED_BEFORE_SHARE = 0.75
RATE_FACTORS_BEFORE, RATE_FACTORS_AFTER = (16, 26), (18, 28)


@dataclass(frozen=True)
class ClipSample:
    """One file. Samples of one `group` show the same scene: no split may part them."""

    data: bytes
    family: str
    group: str
    name: str
    camera: int
    """its number in CAMERAS"""
    frames: int
    segments: tuple[Stretch, ...]
    """what is forged, in order; none of a real clip"""

    @property
    def media(self) -> MediaSample:
        """The file without its truth."""
        return MediaSample(self.data, self.family, self.group, self.name)


def make_clip(seed: int, split: str, family: str, index: int) -> ClipSample:
    """Render the `index`-th clip of a family ("real" or a name in FAMILIES) of one split, always the same.

    Bytes are equal on machines with the same pinned packages and vector instructions. Raises KeyError for an
    unknown family or split.
    """
    forge = None if family == REAL else FAMILIES[family]
    if split not in SPLITS:
        raise KeyError(split)
    rng = np.random.default_rng([seed, SPLITS.index(split), zlib.crc32(f"clip-{family}".encode()), index])
    scene, camera = rng.bytes(8).hex(), int(rng.integers(len(CAMERAS)))
    moves = smooth_path(rng, FRAMES, REACH_PX)
    frames = _filmed_scene(rng, camera, moves)
    if rng.random() < CODED_BEFORE_SHARE:
        frames = through_h264(frames, _drawn(rng, RATE_FACTORS_BEFORE))
    segments: tuple[Stretch, ...] = ()
    if forge is not None:
        segments = draw_stretches(rng, len(frames))
        # What stands in the scene goes the other way than the window does.
        frames = forged_along(rng, frames, segments, -moves, partial(forge_in_part, forge))
    data = to_h264(frames, _drawn(rng, RATE_FACTORS_AFTER), "mp4")
    # The name is the content's: it must not tell the family.
    name = f"{hashlib.sha256(data).hexdigest()[:20]}.mp4"
    return ClipSample(data, family, f"scene-{scene}", name, camera, len(frames), segments)


def numbers_of(count: int, families: Sequence[str] = tuple(FAMILIES)) -> list[tuple[str, int]]:
    """Share `count` clips out, (family, index) each: half are real, the others of all families."""
    forged = count // 2
    reals = [(REAL, index) for index in range(count - forged)]
    return reals + [(families[i % len(families)], i // len(families)) for i in range(forged)]


def make_clips(
    seed: int,
    split: str,
    wanted: Sequence[tuple[str, int]],
    *,
    processes: int,
    progress: Callable[[int, int], None] = lambda made, total: None,
) -> Iterator[ClipSample]:
    """The clips of `wanted`, (family, index) each, in that order, made in parallel processes.

    Processes are spawned: a script that calls this needs a main guard.
    """
    jobs = [(seed, split, family, index) for family, index in wanted]
    with ProcessPoolExecutor(max(1, processes), mp_context=get_context("spawn")) as pool:
        for made, sample in enumerate(pool.map(_make_job, jobs), start=1):
            yield sample
            progress(made, len(jobs))


def _make_job(job: tuple[int, str, str, int]) -> ClipSample:
    return make_clip(*job)


def _filmed_scene(rng: np.random.Generator, camera: int, moves: Moves) -> Picture:
    """What a camera films of a scene through a window that moves, uint8 [T, S, S, 3]."""
    side = SIDE_PX + 2 * REACH_PX
    scene = render(rng, side, side)
    state = int(rng.integers(2**63))
    frames = []
    for down, across in moves + REACH_PX:
        window = scene[:, down : down + SIDE_PX, across : across + SIDE_PX]
        frames.append(photograph(np.random.default_rng(state), window, CAMERAS[camera], rng))
    return np.stack(frames)


def _drawn(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    return int(rng.integers(bounds[0], bounds[1] + 1))

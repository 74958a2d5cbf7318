"""A folder of one's own films, from which filmed clips are cut."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from updater.distortions.clip import Clip, ClipError, to_rgb
from updater.filters import Picture

MAX_PIXELS = 50_000_000
"""largest frame of a film that is read"""


@dataclass(frozen=True)
class Film:
    """A film that has room for a clip."""

    path: Path
    group: str
    """what its clips must not be parted from"""
    frames: int
    height: int
    width: int


def films_in(folder: Path, frames: int, side_px: int) -> tuple[tuple[Film, ...], tuple[str, ...]]:
    """Find the films below a folder that have room for a clip of so many frames and so large a side.

    Return them by name, and a line for each other file: why it was left out.
    """
    films, left_out = [], []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            sizes = [(frame.height, frame.width) for frame in Clip(path, MAX_PIXELS).frames()]
        except ClipError as error:
            left_out.append(str(error))
            continue
        if len(sizes) < frames or min(sizes[0]) < side_px:
            left_out.append(f"{path} is shorter than {frames} frames or smaller than {side_px} px")
            continue
        films.append(Film(path, path.stem, len(sizes), *sizes[0]))
    return tuple(films), tuple(left_out)


def piece_of_film(rng: np.random.Generator, film: Film, frames: int, side_px: int) -> Picture:
    """Cut a random piece at native resolution, uint8 [frames, side, side, 3]. Raises ClipError."""
    start = int(rng.integers(film.frames - frames + 1))
    top = int(rng.integers(film.height - side_px + 1))
    left = int(rng.integers(film.width - side_px + 1))
    shown = islice(Clip(film.path, MAX_PIXELS).frames(), start, start + frames)
    return np.stack([to_rgb(frame)[top : top + side_px, left : left + side_px] for frame in shown])

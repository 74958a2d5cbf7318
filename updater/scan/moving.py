"""A region that moves along through a clip, and is forged in some of its frames."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from updater.filters import Picture
from updater.outliers.masks import Forged
from updater.scan.stretches import Stretch

FRAMES = 96
"""of a clip as it is scanned"""

Path = NDArray[np.int64]
"""where something is in each frame, [T, 2] of rows and columns"""

_SEEN = 0.5
_TRIES = 20


ForgeInPart = Callable[[np.random.Generator, Picture], Forged]
"""Takes a picture, uint8 [H, W, 3]."""


def smooth_path(rng: np.random.Generator, frames: int, reach_px: int) -> Path:
    """Draw a smooth path about its middle, int64 [frames, 2], which goes no further than `reach_px`."""
    when = np.arange(frames)[:, None, None] / FRAMES
    waves = np.sin(2 * np.pi * (rng.uniform(0.2, 1.2, (2, 2)) * when + rng.random((2, 2))))
    path: Path = np.rint(reach_px * rng.uniform(0.2, 1, 2) * waves.mean(1)).astype(np.int64)
    return path


def forged_along(
    rng: np.random.Generator,
    frames: Picture,
    segments: Sequence[Stretch],
    moves: Path,
    forge: ForgeInPart,
) -> Picture:
    """Forge the frames of some segments, uint8 [T, H, W, 3], in one region that moves by `moves`.

    Every frame is forged by the same draws, in the coordinates of the region: so strengths, edges, and where
    there is one the donor, are the clip's. At least half of the region is within each forged frame.
    """
    numbers = [number for segment in segments for number in range(*segment)]
    for _ in range(_TRIES):
        own = int(rng.integers(2**63))
        start = forge(np.random.default_rng(own), frames[numbers[0]])
        if _least_seen(start.mask, moves[numbers]) >= _SEEN:
            break
    forged = frames.copy()
    for number in numbers:
        about_region = shifted(frames[number], moves[number])
        made = forge(np.random.default_rng(own), about_region).picture
        rows, columns, own_rows, own_columns = _common(frames.shape[1:3], moves[number])
        forged[number, rows, columns] = made[own_rows, own_columns]
    return forged


def shifted(frame: Picture, move: NDArray[np.int64]) -> Picture:
    """The frame as who moves along sees it: what it shows at (r, c) + move stands at (r, c), mirrored beyond.

    frame: uint8 [H, W, 3]; move: (down, across) in px.
    """
    reach = int(np.abs(move).max())
    padded = np.pad(frame, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    down, across = (int(one) + reach for one in move)
    return np.ascontiguousarray(padded[down : down + frame.shape[0], across : across + frame.shape[1]])


def _common(size: tuple[int, ...], move: NDArray[np.int64]) -> tuple[slice, slice, slice, slice]:
    """Return which rows and columns of a frame the moved one shows, and where in it they are."""
    (height, width), (down, across) = size, (int(one) for one in move)
    return (
        slice(max(0, down), height + min(0, down)),
        slice(max(0, across), width + min(0, across)),
        slice(max(0, -down), height - max(0, down)),
        slice(max(0, -across), width - max(0, across)),
    )


def _least_seen(mask: NDArray[np.float32], moves: Path) -> float:
    """Return the least share of a region that is within the frame, over all frames."""
    size, total = mask.shape[:2], float(mask.sum()) + 1e-6
    return min(float(mask[_common(size, move)[2:]].sum()) / total for move in np.unique(moves, axis=0))

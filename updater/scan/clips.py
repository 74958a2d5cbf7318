"""A clip as the head over time sees it, and how one is forged: in stretches, in a region that moves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from detector.features.cell_traces import FrameFeatures
from detector.model.export import write_onnx
from detector.release.crop_graphs import FEATURES
from detector.release.tensors import CROPS, ROWS, TensorSpec
from detector.serving.session import open_graph
from updater.filters import Picture
from updater.outliers.local_forgeries import Forged


@dataclass(frozen=True)
class ScannedClip:
    """T frames of one clip, in order."""

    features: NDArray[np.float32]
    """[T, F], raw: as `detector.features.cell_traces.FrameFeatures` gives them"""
    segments: NDArray[np.float64]
    """[m, 2] of (first, end): what is forged, half open, in these frames; [0, 2] of a real clip"""

    @property
    def is_forged(self) -> NDArray[np.bool_]:
        """Which frames are forged, [T]."""
        inside = np.zeros(len(self.features), bool)
        for first, end in self.segments:
            inside[int(first) : int(end)] = True
        return inside


def make_clip(features: NDArray[np.float32], segments: Sequence[tuple[int, int]]) -> ScannedClip:
    """Put features of T frames and their forged stretches together. Raises ValueError for one beyond them."""
    if any(not 0 <= first < end <= len(features) for first, end in segments):
        raise ValueError(f"of {len(features)} frames, {list(segments)} cannot be forged")
    return ScannedClip(features, np.array(segments, np.float64).reshape(-1, 2))


class Stretch(NamedTuple):
    """The frames first, first + 1, … end - 1."""

    first: int
    end: int


SHORTEST = 9
"""frames of a stretch, forged or real: ForgeryNet's bound"""
MOST = 3
_TO_THE_EDGE = 0.15


def draw_stretches(rng: np.random.Generator, frames: int) -> tuple[Stretch, ...]:
    """Draw forged stretches of a clip of so many frames, in order; some begin or end with the clip.

    What lies between and beside them is real, and no shorter than they may be. At least one frame in ten is
    real. Raises ValueError for a clip that has no room for one forged and one real stretch.
    """
    if frames < 2 * SHORTEST:
        raise ValueError(f"a clip of {frames} frames has no room for a forged and a real stretch")
    room = (frames // SHORTEST - 1) // 2
    forged = int(rng.integers(1, max(1, min(MOST, room)) + 1))
    # Stretches take turns: real, forged, real, … forged, real; the outer real ones may be missing.
    first, last = (bool(rng.random() >= _TO_THE_EDGE) for _ in range(2))
    if not (first or last) and forged == 1:
        first = True
    parts = 2 * forged - 1 + first + last
    if parts * SHORTEST > frames:
        parts, first, last = 2, True, False
    spare = rng.multinomial(frames - parts * SHORTEST, rng.dirichlet(np.ones(parts)))
    ends = np.cumsum(SHORTEST + spare)
    starts = ends - SHORTEST - spare
    return tuple(Stretch(int(starts[i]), int(ends[i])) for i in range(int(first), parts, 2))


FRAMES = 96
"""of a clip as it is scanned"""

Moves = NDArray[np.int64]
"""where something is in each frame, [T, 2] of rows and columns"""

_SEEN = 0.5
_TRIES = 20


ForgeInPart = Callable[[np.random.Generator, Picture], Forged]
"""Takes a picture, uint8 [H, W, 3]."""


def smooth_path(rng: np.random.Generator, frames: int, reach_px: int) -> Moves:
    """Draw a smooth path about its middle, int64 [frames, 2], which goes no further than `reach_px`."""
    when = np.arange(frames)[:, None, None] / FRAMES
    waves = np.sin(2 * np.pi * (rng.uniform(0.2, 1.2, (2, 2)) * when + rng.random((2, 2))))
    path: Moves = np.rint(reach_px * rng.uniform(0.2, 1, 2) * waves.mean(1)).astype(np.int64)
    return path


def forged_along(
    rng: np.random.Generator, frames: Picture, segments: Sequence[Stretch], moves: Moves, forge: ForgeInPart
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
        about_region = shift_frame(frames[number], moves[number])
        made = forge(np.random.default_rng(own), about_region).picture
        rows, columns, own_rows, own_columns = _common(frames.shape[1:3], moves[number])
        forged[number, rows, columns] = made[own_rows, own_columns]
    return forged


def shift_frame(frame: Picture, move: NDArray[np.int64]) -> Picture:
    """The frame as who moves along sees it: what it shows at (r, c) + move stands at (r, c), mirrored beyond.

    frame: uint8 [H, W, 3]; move: (down, across) in px.
    """
    reach = int(np.abs(move).max())
    padded = np.pad(frame, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    down, across = (int(step) + reach for step in move)
    return np.ascontiguousarray(padded[down : down + frame.shape[0], across : across + frame.shape[1]])


def _common(size: tuple[int, ...], move: NDArray[np.int64]) -> tuple[slice, slice, slice, slice]:
    """Return which rows and columns of a frame the moved one shows, and where in it they are."""
    (height, width), (down, across) = size, (int(step) for step in move)
    return (
        slice(max(0, down), height + min(0, down)),
        slice(max(0, across), width + min(0, across)),
        slice(max(0, -down), height - max(0, down)),
        slice(max(0, -across), width - max(0, across)),
    )


def _least_seen(mask: NDArray[np.float32], moves: Moves) -> float:
    """Return the least share of a region that is within the frame, over all frames."""
    size, total = mask.shape[:2], float(mask.sum()) + 1e-6
    return min(float(mask[_common(size, move)[2:]].sum()) / total for move in np.unique(moves, axis=0))


# More crops at once do not fit the processor's cache.
_CROPS_AT_ONCE = 4


class SeenFrames:
    """Features of frames, of which one crop is seen. Threads may share one."""

    def __init__(self, crop_px: int) -> None:
        """Make the graph. Raises ValueError for a side that has no features."""
        crops = TensorSpec(name=CROPS, dtype="uint8", shape=(ROWS, crop_px, crop_px, 3))
        with TemporaryDirectory() as folder:
            path = Path(folder) / "features.onnx"
            write_onnx(_OfCrops(crop_px), [crops], path)
            # It computes in the thread that calls, as `memory.features.ItemFeatures` does.
            self._session = open_graph(path, {CROPS}, {FEATURES}, threads=1, gpu=None)

    def __call__(self, frames: Picture) -> NDArray[np.float32]:
        """Return float32 [T, F] of crops, uint8 RGB [T, S, S, 3] with T >= 1."""
        parts = np.split(frames, range(_CROPS_AT_ONCE, len(frames), _CROPS_AT_ONCE))
        return np.concatenate([self._session.run([FEATURES], {CROPS: part})[0] for part in parts])


class _OfCrops(nn.Module):
    def __init__(self, crop_px: int) -> None:
        super().__init__()
        self.features = FrameFeatures(crop_px)

    def forward(self, crops: Tensor) -> dict[str, Tensor]:
        return {FEATURES: self.features(crops.permute(0, 3, 1, 2).float())}

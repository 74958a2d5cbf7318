"""Real videos of the library, frame by frame, as an import kept them for the scanner to learn from."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import structlog

from memory.crops.crop_store import Views
from memory.crops.scans import decode_frames
from memory.records import REAL, Exemplar
from updater.data.stored_rows import Collected, StoredRows
from updater.filters import Picture

log = structlog.get_logger()

MOST = 120
"""videos of a split that are read, in the order of their digests: 5 MB each of 128 px, on disk where many"""

LEAST_VIDEOS = 20
"""real videos, one a group, that a threshold is set on: fewer say too little of those to come"""


@dataclass(frozen=True)
class RealClips:
    """n real videos, one crop of each of some frames."""

    frames: npt.NDArray[np.uint8] | StoredRows
    """[T, S, S, 3], uint8, RGB; in memory or on disk"""
    starts: npt.NDArray[np.int64]
    """[n + 1]: rows starts[i]:starts[i + 1] of frames are video i's"""
    groups: tuple[str, ...]
    """length n: videos of one group show nearly the same"""

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, number: int) -> Picture:
        """Return one video's frames, [T, S, S, 3]."""
        clip: Picture = self.frames[int(self.starts[number]) : int(self.starts[number + 1])]
        return clip

    def one_a_group(self) -> tuple[int, ...]:
        """Return the number of the first video of each group: a group is one witness."""
        return tuple(sorted({group: i for i, group in reversed(list(enumerate(self.groups)))}.values()))


NO_CLIPS = RealClips(np.zeros((0, 0, 0, 3), np.uint8), np.zeros(1, np.int64), ())


class Gathering:
    """Collects the real videos of a split as its exemplars are read."""

    def __init__(self) -> None:
        self._frames = Collected()
        self._starts, self._groups = [0], list[str]()

    def add(self, exemplar: Exemplar, views: Views) -> None:
        """Take an exemplar's frames, where it is real and has some. Raises StoredRowsError."""
        if exemplar.family != REAL or views.scan is None or len(self._groups) == MOST:
            return
        try:
            frames = decode_frames(views.scan)
        except ValueError as error:
            log.error("frames of a real video left out", exemplar=exemplar.id, error=str(error))
            return
        if frames.shape[1:] == views.crops.shape[1:]:
            self._frames.add(frames)
            self._starts.append(self._starts[-1] + len(frames))
            self._groups.append(exemplar.group)

    def clips(self) -> RealClips:
        if not self._groups:
            return NO_CLIPS
        return RealClips(self._frames.rows(), np.array(self._starts, np.int64), tuple(self._groups))

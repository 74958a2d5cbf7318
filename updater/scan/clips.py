"""What the head over time sees of a clip: the features of one crop a frame; and the truth of each frame."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ScannedClip:
    """T frames of one clip, in order."""

    features: NDArray[np.float32]
    """[T, F], raw: as `detector.features.cell_traces.FrameFeatures` gives them"""
    segments: NDArray[np.float64]
    """[m, 2] of (first, end): what is forged, half open, in these frames; [0, 2] of a real clip"""

    @property
    def forged(self) -> NDArray[np.bool_]:
        """Which frames are forged, [T]."""
        inside = np.zeros(len(self.features), bool)
        for first, end in self.segments:
            inside[int(first) : int(end)] = True
        return inside


def scanned(features: NDArray[np.float32], segments: Sequence[tuple[int, int]]) -> ScannedClip:
    """Put features of T frames and their forged stretches together. Raises ValueError for one beyond them."""
    if any(not 0 <= first < end <= len(features) for first, end in segments):
        raise ValueError(f"of {len(features)} frames, {list(segments)} cannot be forged")
    return ScannedClip(features, np.array(segments, np.float64).reshape(-1, 2))

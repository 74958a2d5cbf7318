"""Raw forensic features of whole items, as the release's graph computes them, and one scale for them."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from detector.model.feature_graph import feature_graph
from detector.release.manifest import FEATURE_VERSION
from detector.release.manifest import FEATURE_WIDTH as WIDTH

__all__ = ["FEATURE_VERSION", "WIDTH", "Floats", "ItemFeatures", "features_of"]

Floats = NDArray[np.float32]

# More crops at once do not fit the processor's cache.
_CROPS_AT_ONCE = 4

_SMALLEST_SCALE = 1e-3
_CLIP = 8.0


class ItemFeatures:
    """Features of items whose crops have one side, in pixels. Threads may share one."""

    def __init__(self, crop_px: int) -> None:
        """Load the graph. Raises ValueError for a side that has no features."""
        options = onnxruntime.SessionOptions()
        # It computes in the thread that calls: threads that wait for each other at every small convolution
        # take longer together on a core that is shared.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        on = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(feature_graph(crop_px), options, providers=on)

    def __call__(self, items: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Return float32 (n, F), the mean over each item's crops, uint8 RGB (N_i, S, S, 3) with N_i >= 1."""
        crops = np.concatenate(items)
        cuts = range(_CROPS_AT_ONCE, len(crops), _CROPS_AT_ONCE)
        parts = np.split(crops, cuts)
        rows = np.concatenate([self._session.run(["features"], {"crops": part})[0] for part in parts])
        ends = np.cumsum([len(item) for item in items])[:-1]
        return np.stack([part.mean(0, dtype=np.float32) for part in np.split(rows, ends)])


def features_of(crops: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return float32 (WIDTH,), the mean over an item's crops, uint8 RGB (N, S, S, 3) with N >= 1.

    Raises ValueError for a side S that has no features, as `detector.model.feature_graph` says.
    """
    (features,) = _of_side(crops.shape[1])([crops])
    return np.asarray(features, np.float32)


@functools.lru_cache(maxsize=4)
def _of_side(crop_px: int) -> ItemFeatures:
    return ItemFeatures(crop_px)


@dataclass(frozen=True)
class Scaling:
    """A robust scale a feature: z = (x - median) / ((q84 - q16) / 2), clipped at ±8.

    centre and scale are float32 (F,). Of normally distributed features z has a standard deviation of 1.
    """

    centre: NDArray[np.float32]
    scale: NDArray[np.float32]

    @classmethod
    def fit(cls, raw: NDArray[np.float32]) -> Self:
        """Take the scale of raw features, float32 (n, F) with n >= 1."""
        low, centre, high = np.quantile(raw, (0.16, 0.5, 0.84), axis=0)
        scale = np.maximum((high - low) / 2, _SMALLEST_SCALE)
        return cls(centre.astype(np.float32), scale.astype(np.float32))

    def apply(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return z, float32 (n, F), of raw features of that shape."""
        # Clipped, so that one wild feature cannot be the whole distance.
        scaled: NDArray[np.float32] = np.clip((raw - self.centre) / self.scale, -_CLIP, _CLIP)
        return scaled.astype(np.float32)

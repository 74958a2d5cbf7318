"""Raw forensic features of whole items, as the release's graph computes them."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from detector.architecture import FEATURE_VERSION
from detector.forensics import WIDTH, ForensicFeatures

__all__ = ["FEATURE_VERSION", "WIDTH", "ItemFeatures", "features_of", "one_torch_thread"]

# More crops at once do not fit the processor's cache: 128 took several times as long each.
_CROPS_AT_ONCE = 4


class ItemFeatures:
    """Features of items whose crops have one side, in pixels."""

    def __init__(self, crop_px: int) -> None:
        self._module = ForensicFeatures(crop_px).eval()

    def __call__(self, items: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Return float32 (n, F), the mean over each item's crops, uint8 RGB (N_i, S, S, 3) with N_i >= 1."""
        crops = torch.from_numpy(np.concatenate(items)).permute(0, 3, 1, 2)
        cuts = list(range(_CROPS_AT_ONCE, len(crops), _CROPS_AT_ONCE))
        with torch.inference_mode():
            each = torch.cat([self._module(part.float()) for part in torch.tensor_split(crops, cuts)])
        ends = np.cumsum([len(item) for item in items])[:-1].tolist()
        return np.stack([part.numpy().mean(0, dtype=np.float32) for part in torch.tensor_split(each, ends)])


def features_of(crops: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return float32 (WIDTH,), the mean over an item's crops, uint8 RGB (N, S, S, 3) with N >= 1.

    Raises ValueError for a side S that has no features: no multiple of 8, or less than 32.
    """
    (features,) = _of_side(crops.shape[1])([crops])
    return np.asarray(features, np.float32)


@functools.lru_cache(maxsize=4)
def _of_side(crop_px: int) -> ItemFeatures:
    return ItemFeatures(crop_px)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Keep torch to one thread: threads that wait for each other at every small convolution make it ten
    times slower on a core that is shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

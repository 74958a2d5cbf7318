"""Raw forensic features of whole items, as the release's graph computes them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from detector.architecture import FEATURE_VERSION
from detector.forensics import ForensicFeatures

__all__ = ["FEATURE_VERSION", "ItemFeatures"]

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

"""Raw forensic features brought to one scale, so that distances between them mean something."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

_SMALLEST_SCALE = 1e-3
_CLIP = 8.0


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

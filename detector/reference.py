"""A release's reference set: forensic features of rehearsal exemplars, whitened. No torch here."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file


@dataclass(frozen=True)
class Reference:
    """What novelty is measured against.

    features is float32 (R, W), already whitened; ids and families name its R exemplars. A raw
    forensic feature row f, float32 (F,), is whitened as (f - mean) @ whitening, with mean (F,) and
    whitening (F, W) of the within-class covariance.
    """

    features: NDArray[np.float32]
    ids: tuple[str, ...]
    families: tuple[str, ...]
    mean: NDArray[np.float32]
    whitening: NDArray[np.float32]

    def __post_init__(self) -> None:
        rows, width = self.features.shape
        if not rows == len(self.ids) == len(self.families):
            raise ValueError(f"{rows} rows, {len(self.ids)} ids and {len(self.families)} families")
        if self.whitening.shape != (len(self.mean), width):
            raise ValueError(f"whitening is {self.whitening.shape}, not {(len(self.mean), width)}")

    def whiten(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """Raw forensic features (n, F) in the reference's coordinates, float32 (n, W)."""
        whitened: NDArray[np.float32] = ((raw - self.mean) @ self.whitening).astype(np.float32)
        return whitened

    def save(self, path: Path) -> None:
        """Write the arrays; ids and families belong into the manifest."""
        arrays = {"features": self.features, "mean": self.mean, "whitening": self.whitening}
        save_file({name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}, path)


def load_reference(path: Path, ids: tuple[str, ...], families: tuple[str, ...]) -> Reference:
    """Read back what Reference.save wrote, with the manifest's ids and families."""
    arrays = load_file(path)
    return Reference(
        features=arrays["features"],
        ids=ids,
        families=families,
        mean=arrays["mean"],
        whitening=arrays["whitening"],
    )

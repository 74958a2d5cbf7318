"""Items as a trained network judged them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class JudgedItems:
    """n items judged; scores are higher for less familiar items."""

    families: NDArray[np.str_]
    """[n], the class that each is of"""
    groups: NDArray[np.str_]
    column: NDArray[np.int64]
    """[n], the highest logit"""
    right: NDArray[np.bool_]
    """[n], whether that is right, the gate aside: as `rightly_told` counts it"""
    fake_probability: NDArray[np.float32]
    fake_by_maxima: NDArray[np.float32]
    """[n], CDDB's p_F, which its mAP is of"""
    energy: NDArray[np.float32]
    unknown_score: NDArray[np.float32]
    """[n], by the gate"""
    labels: NDArray[np.str_]
    """[n], real, fake or unknown, at the deployed thresholds"""
    features: NDArray[np.float32]
    """[n, F], the raw forensic ones; F is 0 where there are none"""
    rejection: dict[str, NDArray[np.float64]]

    def take(self, rows: slice) -> "JudgedItems":
        """Return these items."""
        parts = {name: values[rows] for name, values in vars(self).items() if name != "rejection"}
        return JudgedItems(**parts, rejection={name: v[rows] for name, v in self.rejection.items()})


def joined_items(parts: Sequence[JudgedItems]) -> JudgedItems:
    """Return the items of all parts, of which there is at least one."""
    names = [name for name in vars(parts[0]) if name != "rejection"]
    return JudgedItems(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names},
        rejection={
            name: np.concatenate([part.rejection[name] for part in parts]) for name in parts[0].rejection
        },
    )

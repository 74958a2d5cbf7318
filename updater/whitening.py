"""Coordinates in which the items of every class scatter alike in all directions."""

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf

_LEAST = 1e-6
"""of a variance, in units of a feature's own"""


def within_class_whitening(
    features: NDArray[np.float32], families: NDArray[np.str_]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean [F] and a matrix [F, F] so that (x - mean) @ matrix has within-class covariance 1.

    features: one row an item, float32 [n, F]; families: their classes, str [n]. The covariance is shrunk
    (Ledoit and Wolf 2004), so that the matrix can be inverted for any number of items.
    """
    scale, values, vectors = _within_class(features, families)
    whitening = (vectors / np.sqrt(values)) / scale[:, None]
    return features.mean(0).astype(np.float32), whitening.astype(np.float32)


def part_whitening(
    features: NDArray[np.float32], families: NDArray[np.str_], share: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean [F] and a matrix [F, F] that whitens only part of the way.

    A direction whose within-class variance is v, in units of each feature's own, gets v^(1 - share): a
    share of 0 leaves the features standardised, 1 makes all directions alike. Arguments as above.
    """
    scale, values, vectors = _within_class(features, families)
    whitening = (vectors * values ** (-share / 2)) @ vectors.T / scale[:, None]
    return features.mean(0).astype(np.float32), whitening.astype(np.float32)


def _within_class(
    features: NDArray[np.float32], families: NDArray[np.str_]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return each feature's scale [F] and, in it, the shrunk covariance's eigenvalues [F] and vectors."""
    centred = features.astype(np.float64)
    for family in np.unique(families):
        centred[families == family] -= centred[families == family].mean(0)
    scale = np.maximum(centred.std(0), 1e-3)  # Ledoit-Wolf shrinks towards a sphere: one unit for all
    covariance, _ = ledoit_wolf(centred / scale, assume_centered=True)
    values, vectors = np.linalg.eigh(covariance)
    # Of features that are the same in all items nothing is left to divide by.
    return scale, np.maximum(values, _LEAST), vectors

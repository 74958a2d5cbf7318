"""Features in axes and units in which a set of them has no covariance."""

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import LedoitWolf


def whiten(scaled: NDArray[np.float32], by: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return scaled, float32 (n, F), in the axes and units in which the covariance of `by` is the identity.

    The covariance is shrunk as in Ledoit and Wolf 2004, "A well-conditioned estimator for
    large-dimensional covariance matrices"; `by` is float32 (m, F), m >= 2.
    """
    estimate = LedoitWolf().fit(by.astype(np.float64))
    values, vectors = np.linalg.eigh(estimate.covariance_)
    transform = vectors / np.sqrt(np.maximum(values, 1e-9))
    return np.asarray((scaled - estimate.location_) @ transform, np.float32)

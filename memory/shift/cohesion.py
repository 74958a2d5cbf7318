"""Whether items that seem unfamiliar do so in one direction: of one kind, or each for a reason of its own."""

import numpy as np
from numpy.typing import NDArray

from memory.index.scaling import Scaling

DRAWS = 999


def cohesion(suspects: NDArray[np.float32], others: NDArray[np.float32], seed: int) -> float | None:
    """Return the p-value of the suspects' deviating in no common direction: small where they cohere.

    suspects float32 (m, F) and others (n, F) are raw features; None for m < 3 or n < m, which say nothing.
    All m + n are scaled, centred and whitened together, with a ridge of their mean variance. The measure is
    the mean inner product of two suspects: pictures of one kind show different things, so that they lie as
    far apart as others do, but are displaced alike. It is ranked among those of DRAWS random m of the m + n
    (a permutation test, with the + 1: Phipson and Smyth 2010), so that it is at most a with a chance of at
    most a where suspects are like the others. So the others must be chosen by their scores as suspects are.
    """
    m = len(suspects)
    if m < 3 or len(others) < m:
        return None
    pool = np.concatenate([suspects, others])
    z = Scaling.fit(pool).apply(pool).astype(np.float64)
    left, lengths, _ = np.linalg.svd(z - z.mean(0), full_matrices=False)
    ridge = max(float((lengths**2).mean()), 1e-12)
    white = left * (lengths / np.sqrt(lengths**2 + ridge))
    alike = white @ white.T
    np.fill_diagonal(alike, 0)
    observed = alike[:m, :m].sum()
    rng = np.random.default_rng(seed)
    drawn = (rng.permutation(len(z))[:m] for _ in range(DRAWS))
    as_alike = sum(bool(alike[np.ix_(some, some)].sum() >= observed - 1e-9) for some in drawn)
    return (1 + as_alike) / (1 + DRAWS)

"""Whether some items lie closer together than as many drawn from them and their source's other reals."""

import numpy as np
from numpy.typing import NDArray

from memory.scaling import Scaling

DRAWS = 999


def cohesion(suspects: NDArray[np.float32], others: NDArray[np.float32], seed: int) -> float | None:
    """Return the p-value of their being no closer together than a draw: small where they cohere.

    suspects float32 (m, F) and others (n, F) are raw features; None for m < 3 or n < m, which say nothing.
    The measure is the mean squared distance between two suspects, robustly scaled over all m + n. It is
    ranked among those of DRAWS random m of the m + n (a permutation test: Phipson and Smyth 2010, with the
    + 1), so that it is at most a with a chance of at most a where suspects are a draw of the source's reals.
    Suspects that were chosen for seeming unfamiliar are, where they are reals, rather further apart.
    """
    m = len(suspects)
    if m < 3 or len(others) < m:
        return None
    z = Scaling.fit(pool := np.concatenate([suspects, others])).apply(pool).astype(np.float64)
    squares = (z**2).sum(1)
    between = squares[:, None] + squares[None] - 2 * z @ z.T
    rng = np.random.default_rng(seed)
    observed = between[:m, :m].sum()
    drawn = (rng.permutation(len(z))[:m] for _ in range(DRAWS))
    closer = sum(bool(between[np.ix_(some, some)].sum() <= observed * (1 + 1e-9)) for some in drawn)
    return (1 + closer) / (1 + DRAWS)

"""Draws with unequal chances, from more items than anyone wants to add up for each of them."""

import numpy as np
from numpy.typing import NDArray


def cumulative(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running sums of chances, float64 [n], the last of which is 1."""
    sums = chances.cumsum()
    return np.asarray(sums / sums[-1])


def draw(rng: np.random.Generator, sums: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Draw from 0..n-1 with these running sums, int64 [count]: what rng.choice(n, count, p=chances) draws."""
    return np.asarray(sums.searchsorted(rng.random(count), "right"), np.int64)

"""How far a measure would move with other items: percentile intervals."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray


def bootstrap_interval(
    statistic: Callable[[NDArray[np.float64], NDArray[np.float64]], float],
    first: ArrayLike,
    second: ArrayLike,
    *,
    level: float = 0.95,
    rounds: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of a statistic of two samples, such as auroc(unknown, known).

    first, second: 1-D, each drawn from with replacement, apart from the other and to its own size.
    The interval is of fresh items, one network given: another seed moves the statistic further. The
    same seed gives the same interval; (nan, nan) where a sample is empty. Source: Efron 1979,
    "Bootstrap methods: another look at the jackknife".
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if not len(a) or not len(b):
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    found = [statistic(rng.choice(a, len(a)), rng.choice(b, len(b))) for _ in range(rounds)]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)

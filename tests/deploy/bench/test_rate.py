import numpy as np
import pytest

from deploy.bench.rate import median_interval


@pytest.mark.parametrize("count", [6, 12, 25])
def test_the_interval_holds_the_median_in_19_of_20_samples_or_more(count: int) -> None:
    draws = np.random.default_rng(0).exponential(size=(4000, count))
    held = [low <= np.log(2) <= high for low, high in map(median_interval, draws.tolist())]
    assert 0.945 <= np.mean(held) < 1


def test_the_interval_of_few_values_is_their_range() -> None:
    assert median_interval([3, 1, 2]) == (1, 3)

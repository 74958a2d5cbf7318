import math

import numpy as np
import pytest
from scipy.stats import bootstrap
from sklearn.metrics import roc_auc_score

from updater.bootstrap import bootstrap_interval
from updater.measures import auroc


def samples(count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(1, 1, count), rng.normal(0, 1, 2 * count)


def test_the_interval_agrees_with_scipys_percentile_bootstrap_of_scikit_learns_area() -> None:
    def area(first: np.ndarray, second: np.ndarray) -> float:
        return float(roc_auc_score([1] * len(first) + [0] * len(second), np.concatenate([first, second])))

    expected = bootstrap(
        samples(), area, vectorized=False, method="percentile", n_resamples=1500, rng=np.random.default_rng(5)
    ).confidence_interval
    assert bootstrap_interval(auroc, *samples()) == pytest.approx(tuple(expected), abs=0.015)


def test_the_interval_of_a_mean_is_the_normal_one() -> None:
    first, second = samples(400)
    low, high = bootstrap_interval(lambda a, b: float(a.mean() - b.mean()), first, second, level=0.9)
    error = math.sqrt(first.var() / len(first) + second.var() / len(second))
    middle = first.mean() - second.mean()
    assert (low, high) == pytest.approx((middle - 1.645 * error, middle + 1.645 * error), abs=0.15 * error)


def test_the_same_seed_gives_the_same_interval_and_another_gives_another() -> None:
    assert bootstrap_interval(auroc, *samples(), rounds=50) == bootstrap_interval(
        auroc, *samples(), rounds=50
    )
    assert bootstrap_interval(auroc, *samples(), rounds=50) != bootstrap_interval(
        auroc, *samples(), rounds=50, seed=1
    )


def test_an_empty_sample_has_no_interval() -> None:
    assert all(math.isnan(end) for end in bootstrap_interval(auroc, [], [1.0]))

import numpy as np
import pytest

from updater.whitening import part_whitening, within_class_whitening

FAMILIES = np.array(["real"] * 4000 + ["blended"] * 2000)


def rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    mixing = np.eye(6) + 0.3 * rng.normal(size=(6, 6))
    return (rng.normal(size=(6000, 6)) @ mixing + np.where(FAMILIES == "real", 0, 5)[:, None]).astype("f")


def within(values: np.ndarray) -> np.ndarray:
    """Return the covariance about each family's own mean."""
    centred = values.astype(np.float64)
    for family in set(FAMILIES):
        centred[family == FAMILIES] -= centred[family == FAMILIES].mean(0)
    return centred.T @ centred / len(centred)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_direction_of_variance_v_is_left_with_v_to_the_rest_of_the_share(share: float) -> None:
    before = within(rows())
    scale = np.sqrt(np.diag(before))
    mean, matrix = part_whitening(rows(), FAMILIES, share)
    after = within((rows() - mean) @ matrix)
    values, vectors = np.linalg.eigh(before / np.outer(scale, scale))
    # The shrinkage of the estimate moves the smallest variances a little.
    assert vectors.T @ after @ vectors == pytest.approx(np.diag(values ** (1 - share)), abs=0.06)


def test_all_the_way_is_the_whitening_but_for_a_rotation() -> None:
    _, part = part_whitening(rows(), FAMILIES, 1.0)
    _, whole = within_class_whitening(rows(), FAMILIES)
    assert part @ part.T == pytest.approx(whole @ whole.T, rel=1e-3, abs=1e-4)


def test_items_that_are_all_alike_whiten_to_nothing_that_is_infinite() -> None:
    rows = np.full((12, 5), 3.0, np.float32)
    mean, whitening = within_class_whitening(rows, np.array(["real"] * 12))
    assert np.isfinite(whitening).all()
    assert not ((rows - mean) @ whitening).any()

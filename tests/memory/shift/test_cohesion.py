import numpy as np
import pytest

from memory.shift.cohesion import DRAWS, cohesion

F = 20


def drawn(rng: np.random.Generator, count: int, spread: float = 1.0) -> np.ndarray:
    return (rng.normal(size=(count, F)) * spread).astype(np.float32)


def test_suspects_of_one_kind_cohere_and_as_many_reals_do_not() -> None:
    rng = np.random.default_rng(0)
    others = drawn(rng, 40)
    kind = drawn(rng, 1) + drawn(rng, 10)  # as far apart as the others are, and displaced alike
    assert cohesion(kind, others, 1) == pytest.approx(1 / (1 + DRAWS))
    scattered = cohesion(drawn(rng, 10, 2.0), others, 1)
    assert scattered is not None
    assert scattered > 0.1


@pytest.mark.slow
def test_its_p_value_is_small_no_more_often_than_it_says() -> None:
    rng = np.random.default_rng(1)
    found = [cohesion(drawn(rng, 8), drawn(rng, 20), seed) for seed in range(120)]
    small = np.mean([p is not None and p <= 0.1 for p in found])
    # 120 draws of a share of 0.1: three standard deviations are 0.08.
    assert small <= 0.18
    assert np.mean([p is not None and p <= 0.5 for p in found]) > 0.3


@pytest.mark.parametrize(("suspects", "others"), [(0, 30), (2, 30), (5, 4)])
def test_too_few_say_nothing(suspects: int, others: int) -> None:
    rng = np.random.default_rng(2)
    assert cohesion(drawn(rng, suspects), drawn(rng, others), 1) is None


def test_all_alike_is_no_cohesion() -> None:
    assert cohesion(np.ones((5, F), np.float32), np.ones((9, F), np.float32), 1) == 1

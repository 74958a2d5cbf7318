"""What is measured of a network on the tests of its tasks."""

from types import SimpleNamespace

import numpy as np
import pytest

from updater.benchmark.continual.continual import figures_of
from updater.training.step import Options


def judged(by_maxima, by_mass):
    """A task's test: two fakes, then two reals, by both probabilities of fake."""
    return SimpleNamespace(
        families=np.array(["a/fake", "a/fake", "a/real", "a/real"]),
        labels=np.array(["fake", "fake", "real", "unknown"]),
        column=np.array([1, 1, 0, 0]),
        right=np.array([True, True, True, True]),
        fake_probability=np.array(by_mass, np.float32),
        fake_by_maxima=np.array(by_maxima, np.float32),
    )


def test_map_is_by_cddbs_probability_and_map_mass_by_that_of_a_release():
    judge = SimpleNamespace(
        setup=SimpleNamespace(options=Options()), learnt=SimpleNamespace(classes=("a/real", "a/fake"))
    )
    right, half = [0.9, 0.8, 0.2, 0.1], [0.9, 0.1, 0.5, 0.2]
    found = figures_of([judged(right, half)], judge)
    # Of the order fake, real, real, fake the precisions at the two fakes are 1 and 2/4.
    assert found.map == pytest.approx(100)
    assert found.map_mass == pytest.approx(75)
    swapped = figures_of([judged(half, right)], judge)
    assert (swapped.map, swapped.map_mass) == (pytest.approx(75), pytest.approx(100))
    assert found.reals_unknown == 0.5

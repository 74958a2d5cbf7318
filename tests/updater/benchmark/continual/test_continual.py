"""What is measured of a network on the tests of its tasks."""

from types import SimpleNamespace

import numpy as np
import pytest

from detector.release.artifact import Reference
from updater.benchmark.continual.continual import figures_of
from updater.benchmark.continual.left_out import lone_source_scores
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


def reference(points):
    """A reference set of these rows, by class, in coordinates that are those of the raw features."""
    rows = np.array([row for of in points.values() for row in of], np.float32)
    names = tuple(name for name, of in points.items() for _ in of)
    nothing = np.zeros(2, np.float32)
    return Reference(
        features=rows,
        ids=tuple(map(str, range(len(rows)))),
        families=names,
        mean=nothing,
        whitening=np.eye(2, dtype=np.float32),
        embeddings=rows,
        embedding_mean=nothing,
        embedding_whitening=np.eye(2, dtype=np.float32),
        traces=rows,
        trace_whitening=np.eye(2, dtype=np.float32),
        trace_widths=np.array([2]),
    )


KNOWN = {"a/real": [(0, 0), (0, 1)], "a/fake": [(0, 4)], "b/real": [(10, 0)]}


def test_the_score_is_how_much_nearer_an_item_is_to_the_lone_source_than_to_any_other():
    items = np.array([(10, 0), (0, 0), (10, 3), (0, 7)], np.float32)
    found = lone_source_scores(reference(KNOWN), "b", items)
    assert found == pytest.approx([10, -10, (100 + 1) ** 0.5 - 3, 3 - (100 + 49) ** 0.5], abs=1e-5)


def test_whether_an_item_is_a_fake_is_nothing_to_it():
    # The real of the lone source and a fake beside it differ from others alike.
    beside = np.array([(10, 0), (10, 0)], np.float32)
    real, fake = lone_source_scores(reference(KNOWN), "b", beside)
    assert real == fake


@pytest.mark.parametrize("known", [{"a/real": [(0, 0)]}, {"b/real": [(0, 0)], "b/fake": [(1, 0)]}])
def test_a_source_that_nothing_or_everything_is_of_is_an_error(known):
    with pytest.raises(ValueError, match="are of b"):
        lone_source_scores(reference(known), "b", np.zeros((1, 2), np.float32))

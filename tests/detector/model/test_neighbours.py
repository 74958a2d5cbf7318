import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from detector.model.neighbours import nearest, own_distance


def test_a_small_distance_among_large_values_keeps_its_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = 30 * torch.randn(50, 300, generator=generator)
    near = reference[:4] + 1e-3 * torch.randn(4, 300, generator=generator)
    own = own_distance(reference)
    _, index, distance = nearest(near, reference, own)
    assert index[:, 0].tolist() == [0, 1, 2, 3]
    expected = (near.double() - reference[:4].double()).norm(dim=1)
    assert torch.allclose(distance[:, 0].double(), expected, rtol=1e-3)


def test_novelty_agrees_with_scikit_learns_neighbours() -> None:
    rng = np.random.default_rng(0)
    rows, reference = rng.normal(size=(20, 30)).astype("f"), rng.normal(size=(200, 30)).astype("f")
    neighbours = NearestNeighbors(n_neighbors=5).fit(reference)
    expected, at = neighbours.kneighbors(rows)
    theirs, _ = neighbours.kneighbors()  # without a query a row is not its own neighbour
    own = own_distance(torch.from_numpy(reference))
    novelty, index, distance = nearest(torch.from_numpy(rows), torch.from_numpy(reference), own)
    assert np.allclose(own.numpy(), theirs.mean(1), atol=1e-3)
    assert np.array_equal(index.numpy(), at)
    assert np.allclose(distance.numpy(), expected, atol=1e-4)
    assert np.allclose(novelty.numpy(), expected.mean(1) / theirs.mean(1)[at].mean(1), atol=1e-3)


def test_neighbours_are_found_among_classes_that_lie_hundreds_of_units_apart() -> None:
    rng = np.random.default_rng(3)
    rows, reference = (rng.normal(0, 1.2, (n, 60)).astype("f") + np.float32(100) for n in (50, 300))
    expected, at = (
        NearestNeighbors(n_neighbors=5, algorithm="brute").fit(reference.astype("d")).kneighbors(rows)
    )
    found = torch.from_numpy(reference)
    _, index, distance = nearest(torch.from_numpy(rows), found, own_distance(found))
    assert np.array_equal(index.numpy(), at)
    assert np.allclose(distance.numpy(), expected, rtol=1e-5)


def test_novelty_does_not_depend_on_how_widely_a_class_is_spread() -> None:
    rng = np.random.default_rng(1)
    narrow, wide = rng.normal(size=(2, 300, 4)).astype("f")
    wide = 4 * wide + 500
    reference = torch.from_numpy(np.concatenate([narrow[:200], wide[:200]]))
    own = own_distance(reference)
    of_narrow, of_wide = (
        nearest(torch.from_numpy(rows[200:]), reference, own)[0].median().item() for rows in (narrow, wide)
    )
    assert of_narrow == pytest.approx(of_wide, rel=0.15)


def test_duplicates_in_the_reference_do_not_make_their_surroundings_novel() -> None:
    rng = np.random.default_rng(2)
    apart = rng.normal(size=(60, 4)).astype("f")
    reference = torch.from_numpy(np.concatenate([apart, np.repeat(apart[:1], 10, axis=0)]))
    own = own_distance(reference)
    assert own.min() == pytest.approx(0.2 * own.median().item(), rel=0.01)


def test_novelty_needs_as_many_references_as_neighbours() -> None:
    with pytest.raises(ValueError, match="cannot give 5 neighbours"):
        nearest(torch.zeros(1, 3), torch.zeros(4, 3), torch.ones(4))

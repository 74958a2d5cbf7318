import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from detector import scores
from detector.gate import GateParameters, Standard

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=6)


def test_energy_is_minus_t_logsumexp() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])
    assert scores.energy(logits).item() == pytest.approx(-math.log(4))
    assert scores.energy(logits, 2.0).item() == pytest.approx(-2 * math.log(1 + math.sqrt(3)))


@settings(deadline=None)
@given(LOGITS, st.floats(-5, 5, width=32))
def test_raising_every_logit_lowers_the_energy_as_much(row: list[float], shift: float) -> None:
    logits = torch.tensor([row], dtype=torch.float64)
    assert scores.energy(logits + shift).item() == pytest.approx(
        scores.energy(logits).item() - shift, abs=1e-9
    )


@settings(deadline=None)
@given(LOGITS)
def test_pseudo_score_is_the_log_odds_of_the_last_class(row: list[float]) -> None:
    joint = torch.softmax(torch.tensor([row], dtype=torch.float64), 1)[0]
    known, pseudo = (
        torch.tensor([row[:-1]], dtype=torch.float64),
        torch.tensor([row[-1]], dtype=torch.float64),
    )
    expected = torch.log(joint[-1]) - torch.log(joint[:-1].sum())
    assert scores.pseudo_score(known, pseudo).item() == pytest.approx(expected.item(), abs=1e-6)


def test_fake_probability_is_all_but_real() -> None:
    assert scores.fake_probability(torch.tensor([[0.0, math.log(3.0)]])).item() == pytest.approx(0.75)


def test_a_small_distance_among_large_values_keeps_its_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = 30 * torch.randn(50, 300, generator=generator)
    near = reference[:4] + 1e-3 * torch.randn(4, 300, generator=generator)
    reach = scores.reference_reach(reference)
    _, index, distance = scores.novelty(near, reference, reach)
    assert index[:, 0].tolist() == [0, 1, 2, 3]
    expected = (near.double() - reference[:4].double()).norm(dim=1)
    assert torch.allclose(distance[:, 0].double(), expected, rtol=1e-3)


def test_novelty_agrees_with_scikit_learns_neighbours() -> None:
    rng = np.random.default_rng(0)
    rows, reference = rng.normal(size=(20, 30)).astype("f"), rng.normal(size=(200, 30)).astype("f")
    neighbours = NearestNeighbors(n_neighbors=5).fit(reference)
    expected, at = neighbours.kneighbors(rows)
    own, _ = neighbours.kneighbors()  # without a query a row is not its own neighbour
    reach = scores.reference_reach(torch.from_numpy(reference))
    novelty, index, distance = scores.novelty(torch.from_numpy(rows), torch.from_numpy(reference), reach)
    assert np.allclose(reach.numpy(), own.mean(1), atol=1e-3)
    assert np.array_equal(index.numpy(), at)
    assert np.allclose(distance.numpy(), expected, atol=1e-4)
    assert np.allclose(novelty.numpy(), expected.mean(1) / own.mean(1)[at].mean(1), atol=1e-3)


def test_neighbours_are_found_among_classes_that_lie_hundreds_of_units_apart() -> None:
    rng = np.random.default_rng(3)
    rows, reference = (rng.normal(0, 1.2, (n, 60)).astype("f") + np.float32(100) for n in (50, 300))
    expected, at = (
        NearestNeighbors(n_neighbors=5, algorithm="brute").fit(reference.astype("d")).kneighbors(rows)
    )
    found = torch.from_numpy(reference)
    _, index, distance = scores.novelty(torch.from_numpy(rows), found, scores.reference_reach(found))
    assert np.array_equal(index.numpy(), at)
    assert np.allclose(distance.numpy(), expected, rtol=1e-5)


def test_novelty_does_not_depend_on_how_widely_a_class_is_spread() -> None:
    rng = np.random.default_rng(1)
    narrow, wide = rng.normal(size=(2, 300, 4)).astype("f")
    wide = 4 * wide + 500
    reference = torch.from_numpy(np.concatenate([narrow[:200], wide[:200]]))
    reach = scores.reference_reach(reference)
    of_narrow, of_wide = (
        scores.novelty(torch.from_numpy(rows[200:]), reference, reach)[0].median().item()
        for rows in (narrow, wide)
    )
    assert of_narrow == pytest.approx(of_wide, rel=0.15)


def test_duplicates_in_the_reference_do_not_make_their_surroundings_novel() -> None:
    rng = np.random.default_rng(2)
    apart = rng.normal(size=(60, 4)).astype("f")
    reference = torch.from_numpy(np.concatenate([apart, np.repeat(apart[:1], 10, axis=0)]))
    reach = scores.reference_reach(reference)
    assert reach.min() == pytest.approx(0.2 * reach.median().item(), rel=0.01)


def test_novelty_needs_as_many_references_as_neighbours() -> None:
    with pytest.raises(ValueError, match="cannot give 5 neighbours"):
        scores.novelty(torch.zeros(1, 3), torch.zeros(4, 3), torch.ones(4))


def test_fused_weighs_clipped_standard_scores() -> None:
    gate = GateParameters(
        temperature=1,
        energy=Standard(median=1, scale=2),
        pseudo=Standard(median=0, scale=1),
        novelty=Standard(median=10, scale=5),
        embedding_novelty=Standard(median=1, scale=2),
        trace_novelty=Standard(median=0, scale=4),
        clip=3,
        unknown_threshold=0,
        fake_threshold=0.5,
    )
    of = [torch.tensor([value]) for value in (5.0, -9.0, 20.0, 2.0, 2.0)]
    assert scores.fused(*of, gate).item() == pytest.approx(2 - 3 + 2 * 2 + 2 * 0.5 + 3 * 0.5)


def test_trace_novelty_is_the_mean_of_the_novelties_of_the_groups() -> None:
    rows, reference = torch.randn(3, 5), torch.randn(20, 5)
    first = scores.novelty(rows[:, :2], reference[:, :2], scores.reference_reach(reference[:, :2]))[0]
    second = scores.novelty(rows[:, 2:], reference[:, 2:], scores.reference_reach(reference[:, 2:]))[0]
    both = scores.trace_novelty(rows, reference, scores.trace_reach(reference, [2, 3]), [2, 3])
    assert torch.allclose(both, (first + second) / 2)

"""The gate's scores by hand, and their table."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_ood.detector import EnergyBased
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NearestNeighbors

from detector.model.scores import (
    SCORES,
    NetworkOutput,
    energy,
    fit_discriminant,
    fit_pseudo,
    fit_scores,
    fuse_scores,
    nearest,
    own_distance,
)
from detector.release.artifact import Reference
from detector.release.manifest import GateParameters, Term
from updater.measures import within_class_whitening

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=6)


def test_energy_is_minus_t_logsumexp():
    logits = torch.tensor([[0.0, math.log(3.0)]])
    assert energy(logits).item() == pytest.approx(-math.log(4))
    assert energy(logits, 2.0).item() == pytest.approx(-2 * math.log(1 + math.sqrt(3)))


@given(LOGITS, st.floats(-5, 5, width=32))
def test_raising_every_logit_lowers_the_energy_as_much(row, shift):
    logits = torch.tensor([row], dtype=torch.float64)
    assert energy(logits + shift).item() == pytest.approx(energy(logits).item() - shift, abs=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_energy_agrees_with_pytorch_ood(temperature):
    logits = 3 * torch.randn(20, 3, dtype=torch.float64)
    assert torch.allclose(energy(logits, temperature), EnergyBased.score(logits, temperature))


@given(LOGITS)
def test_the_pseudo_score_is_the_log_odds_of_the_last_class(row):
    rows = torch.tensor([row], dtype=torch.float64)
    joint, nothing = torch.softmax(rows, 1)[0], torch.zeros(1, 0)
    found = fit_pseudo(None)(NetworkOutput(rows[:, :-1], rows[:, -1], nothing, nothing))
    expected = torch.log(joint[-1]) - torch.log(joint[:-1].sum())
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)


GATE = GateParameters(
    terms={
        "energy": Term(median=1, scale=2, weight=1),
        "pseudo": Term(median=0, scale=1, weight=1),
        "novelty": Term(median=10, scale=5, weight=2),
    },
    clip=3,
    unknown_threshold=0,
    fake_threshold=0.5,
)
TERMS = {
    name: torch.tensor([value]) for name, value in (("pseudo", -9.0), ("novelty", 20.0), ("energy", 5.0))
}


def test_fused_weighs_clipped_standard_scores_by_their_names():
    assert fuse_scores(TERMS, GATE).item() == pytest.approx(2 - 3 + 2 * 2)


def test_a_score_that_is_no_term_changes_nothing():
    more = TERMS | {"max_logit": torch.tensor([1e9])}
    assert torch.equal(fuse_scores(more, GATE), fuse_scores(TERMS, GATE))


def test_a_term_without_its_score_is_refused():
    with pytest.raises(KeyError, match="novelty"):
        fuse_scores({name: score for name, score in TERMS.items() if name != "novelty"}, GATE)


def reference():
    generator = torch.Generator().manual_seed(0)
    features, embeddings = (torch.randn(20, width, generator=generator).numpy() for width in (5, 3))
    identity, names = torch.eye(5).numpy(), tuple(map(str, range(20)))
    return Reference(
        features=features,
        ids=names,
        families=("real", "gan") * 10,
        mean=0 * features[0],
        whitening=identity,
        embeddings=embeddings,
        embedding_mean=0 * embeddings[0],
        embedding_whitening=identity[:3, :3],
        traces=features,
        trace_whitening=identity,
        trace_widths=torch.tensor([2, 3]).numpy(),
    )


OUTPUT = NetworkOutput(torch.randn(4, 2), torch.randn(4), torch.randn(4, 3), torch.randn(4, 5))


def test_every_score_gives_one_finite_number_a_row():
    found = {name: score(OUTPUT) for name, score in fit_scores(reference()).items()}
    assert found.keys() == SCORES.keys()
    assert {(tuple(score.shape), score.dtype) for score in found.values()} == {((4,), torch.float32)}
    assert all(torch.isfinite(score).all() for score in found.values())


def test_without_a_reference_set_only_what_needs_none_is_left():
    left = fit_scores(None).keys()
    assert {"energy", "pseudo"} <= left
    assert left.isdisjoint({"novelty", "embedding_novelty", "trace_novelty"})


def test_a_reference_set_that_is_too_small_is_refused():
    made = reference()
    few = Reference(
        **{
            name: value[:5] if name in ("features", "ids", "families", "embeddings", "traces") else value
            for name, value in vars(made).items()
        }
    )
    with pytest.raises(ValueError, match="cannot give 6 neighbours"):
        fit_scores(few)


def test_trace_novelty_is_the_mean_of_the_novelties_of_the_groups():
    known = torch.from_numpy(reference().traces)
    first, second = (
        nearest(OUTPUT.features[:, columns], known[:, columns], own_distance(known[:, columns])).novelty
        for columns in (slice(0, 2), slice(2, 5))
    )
    found = fit_scores(reference())["trace_novelty"](OUTPUT)
    assert torch.allclose(found, (first + second) / 2)


def test_each_novelty_reads_its_own_part_of_the_output():
    scores = fit_scores(reference())
    moved = OUTPUT._replace(embedding=OUTPUT.embedding + 9)
    for name, changes in (("novelty", False), ("trace_novelty", False), ("embedding_novelty", True)):
        assert torch.equal(scores[name](moved), scores[name](OUTPUT)) != changes


def test_the_published_gate_weighs_its_scores_so():
    weights = {name: entry.weight for name, entry in SCORES.items()}
    assert weights == {
        "energy": 1,
        "pseudo": 1,
        "novelty": 2,
        "embedding_novelty": 2,
        "trace_novelty": 3,
        "discriminant": 2,
    }


def of_families(names, features, ids):
    mean, whitening = within_class_whitening(features, np.array(names))
    rows = ((features - mean) @ whitening).astype(np.float32)
    made = vars(reference()) | {"features": rows, "traces": rows, "mean": mean, "whitening": whitening}
    made |= {"trace_whitening": whitening, "embeddings": rows[:, :3], "families": names, "ids": ids}
    return Reference(**made)


def test_the_discriminant_agrees_with_scikit_learns_on_one_family():
    rng = np.random.default_rng(0)
    mixed = np.eye(5) + 0.3 * rng.normal(size=(5, 5))
    features = rng.normal(size=(400, 5)) @ mixed
    features[200:] += 1
    names = ("real",) * 200 + ("gan",) * 200
    found = fit_discriminant(of_families(names, features.astype(np.float32), tuple(map(str, range(400)))))
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0).fit(features, np.repeat([0, 1], 200))
    fresh = (rng.normal(size=(50, 5)) @ mixed).astype(np.float32)
    sure = OUTPUT._replace(logits=torch.tensor([[30.0, 0]]).expand(50, 2), features=torch.from_numpy(fresh))
    scores = found(sure).numpy()
    # Its covariance is shrunk, the oracle's is not: the direction is nearly the same, the length less so.
    assert np.corrcoef(scores, oracle.decision_function(fresh))[0, 1] > 0.99


def test_what_the_network_calls_fake_is_no_surprise_to_the_discriminant():
    features = 5 * torch.randn(50, 5, generator=torch.Generator().manual_seed(1))
    real, fake = (
        fit_discriminant(reference())(
            OUTPUT._replace(logits=torch.tensor([logits]).expand(50, 2), features=features)
        )
        for logits in ([30.0, 0], [0, 30.0])
    )
    assert (real > 0).any()
    assert torch.allclose(fake, real.clamp_max(0), atol=1e-4)


@pytest.mark.parametrize("names", [("real", "camera/real"), ("gan", "blended")])
def test_without_a_real_or_without_a_forgery_there_is_no_discriminant(names):
    made = vars(reference()) | {"families": tuple(names[i % 2] for i in range(20))}
    assert fit_discriminant(Reference(**made)) is None


def test_a_small_distance_among_large_values_keeps_its_digits():
    generator = torch.Generator().manual_seed(0)
    reference = 30 * torch.randn(50, 300, generator=generator)
    near = reference[:4] + 1e-3 * torch.randn(4, 300, generator=generator)
    own = own_distance(reference)
    _, index, distance = nearest(near, reference, own)
    assert index[:, 0].tolist() == [0, 1, 2, 3]
    expected = (near.double() - reference[:4].double()).norm(dim=1)
    assert torch.allclose(distance[:, 0].double(), expected, rtol=1e-3)


def test_novelty_agrees_with_scikit_learns_neighbours():
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


def test_neighbours_are_found_among_classes_that_lie_hundreds_of_units_apart():
    rng = np.random.default_rng(3)
    rows, reference = (rng.normal(0, 1.2, (n, 60)).astype("f") + np.float32(100) for n in (50, 300))
    expected, at = (
        NearestNeighbors(n_neighbors=5, algorithm="brute").fit(reference.astype("d")).kneighbors(rows)
    )
    found = torch.from_numpy(reference)
    _, index, distance = nearest(torch.from_numpy(rows), found, own_distance(found))
    assert np.array_equal(index.numpy(), at)
    assert np.allclose(distance.numpy(), expected, rtol=1e-5)


def test_novelty_does_not_depend_on_how_widely_a_class_is_spread():
    rng = np.random.default_rng(1)
    narrow, wide = rng.normal(size=(2, 300, 4)).astype("f")
    wide = 4 * wide + 500
    reference = torch.from_numpy(np.concatenate([narrow[:200], wide[:200]]))
    own = own_distance(reference)
    of_narrow, of_wide = (
        nearest(torch.from_numpy(rows[200:]), reference, own)[0].median().item() for rows in (narrow, wide)
    )
    assert of_narrow == pytest.approx(of_wide, rel=0.15)


def test_duplicates_in_the_reference_do_not_make_their_surroundings_novel():
    rng = np.random.default_rng(2)
    apart = rng.normal(size=(60, 4)).astype("f")
    reference = torch.from_numpy(np.concatenate([apart, np.repeat(apart[:1], 10, axis=0)]))
    own = own_distance(reference)
    assert own.min() == pytest.approx(0.2 * own.median().item(), rel=0.01)


def test_novelty_needs_as_many_references_as_neighbours():
    with pytest.raises(ValueError, match="cannot give 5 neighbours"):
        nearest(torch.zeros(1, 3), torch.zeros(4, 3), torch.ones(4))

"""The scores that read the embedding: ReAct, relation, NNGuide, nearest neighbours; and whose head it is."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestNeighbors

from detector.model.network import Network
from detector.release.manifest import Architecture
from updater.benchmark.rejection import embedding
from updater.benchmark.rejection import logits as logits_of
from updater.benchmark.rejection.evidence import Evidence, EvidenceError, Known, evidence_of, known_of
from updater.benchmark.rejection.methods import POST_HOC

WEIGHT = np.random.default_rng(7).normal(0, 1, (3, 6)).astype("f")
BIAS = np.array([0.5, -0.5, 1], "f")


def items(seed: int, count: int) -> Evidence:
    """Three clusters of embeddings, each along its class's weights."""
    rng = np.random.default_rng(seed)
    embedding = (WEIGHT[np.arange(count) % 3] + rng.normal(0, 0.6, (count, 6))).astype("f")
    logits = embedding @ WEIGHT.T + BIAS
    return Evidence(logits, embedding, np.zeros((count, 0), "f"), np.zeros(count, "f"))


TRAINING, FRESH = items(0, 36), items(1, 14)
KNOWN = Known(TRAINING, np.arange(36) % 3, WEIGHT, BIAS)


def test_react_is_the_energy_of_what_is_left_below_the_quantile() -> None:
    cut = np.quantile(TRAINING.embedding.astype(float), 0.9)
    logits = np.minimum(FRESH.embedding, cut) @ WEIGHT.astype(float).T + BIAS
    assert logits_of.fit_react(KNOWN)(FRESH) == pytest.approx(-logsumexp(logits, axis=1))


def test_react_that_cuts_nothing_is_the_energy() -> None:
    calm = Evidence(
        *(getattr(TRAINING, name) for name in ("logits", "embedding", "features", "pseudo_logit"))
    )
    assert logits_of.fit_react(KNOWN, quantile=1.0)(calm) == pytest.approx(
        POST_HOC["energy"](KNOWN)(calm), abs=1e-5
    )


@pytest.mark.parametrize(("power", "least_edge"), [(1.0, 0.03), (4.0, 0.0)])
def test_relation_is_the_sum_of_the_ties_to_the_training_items(power: float, least_edge: float) -> None:
    likeness = cosine_similarity(FRESH.embedding.astype(float), TRAINING.embedding.astype(float))
    agreement = softmax(FRESH.logits, axis=1) @ softmax(TRAINING.logits, axis=1).T
    expected = []
    for row in np.maximum(likeness, 0) * agreement:
        expected.append(-sum(edge**power for edge in row if edge > least_edge))
    found = embedding.fit_relation(KNOWN, power=power, least_edge=least_edge)(FRESH)
    assert found == pytest.approx(expected, rel=1e-5)


def test_an_item_against_all_training_items_has_no_relation() -> None:
    lonely = Known(
        Evidence(*(a[:1] for a in (TRAINING.logits, TRAINING.embedding, TRAINING.features, BIAS))),
        np.array([0]),
        WEIGHT,
        BIAS,
    )
    opposite = Evidence(TRAINING.logits[:1], -TRAINING.embedding[:1], TRAINING.features[:1], BIAS[:1])
    assert embedding.fit_relation(lonely)(opposite).tolist() == [0]
    assert embedding.fit_relation(lonely)(lonely.evidence)[0] < -0.3


def test_nnguide_is_the_energy_times_the_mean_of_the_best_guides() -> None:
    confidence = logsumexp(TRAINING.logits.astype(float), axis=1)
    guides = cosine_similarity(FRESH.embedding.astype(float), TRAINING.embedding.astype(float)) * confidence
    best = np.sort(guides, axis=1)[:, -10:].mean(1)
    expected = -best * logsumexp(FRESH.logits.astype(float), axis=1)
    assert embedding.fit_nnguide(KNOWN)(FRESH) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("neighbours", [1, 5])
def test_the_embedding_distance_is_scikit_learns_to_the_kth_neighbour(neighbours: int) -> None:
    unit = [e.embedding / np.linalg.norm(e.embedding, axis=1, keepdims=True) for e in (TRAINING, FRESH)]
    distance, _ = NearestNeighbors(n_neighbors=neighbours, algorithm="brute").fit(unit[0]).kneighbors(unit[1])
    found = embedding.fit_embedding_knn(KNOWN, neighbours=neighbours)(FRESH)
    assert found == pytest.approx(distance[:, -1], abs=1e-5)


def test_the_embedding_distance_does_not_see_an_embeddings_length() -> None:
    longer = Evidence(FRESH.logits, FRESH.embedding * 8, FRESH.features, FRESH.pseudo_logit)
    assert embedding.fit_embedding_knn(KNOWN)(longer) == pytest.approx(
        embedding.fit_embedding_knn(KNOWN)(FRESH), abs=1e-5
    )


@pytest.mark.parametrize("fit", [embedding.fit_nnguide, embedding.fit_embedding_knn])
def test_more_neighbours_than_training_items_are_refused(fit: Callable[..., object]) -> None:
    with pytest.raises(EvidenceError, match="36 training items cannot give 37 neighbours"):
        fit(KNOWN, neighbours=37)


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_a_networks_logits_follow_from_its_embedding_and_its_head(head: str) -> None:
    torch.manual_seed(0)
    network = Network(
        Architecture(backbone="lcnet_035", crop_px=32, width=8, forensic=False, head=head), 3
    ).eval()
    with torch.no_grad():
        output = network(torch.rand(5, 3, 32, 32) * 255, torch.eye(5))
    found = known_of(network, evidence_of(network, output), np.zeros(5, np.int64))
    assert found.evidence.logits == pytest.approx(output.logits.numpy())
    again = found.head(torch.tensor(found.evidence.embedding))
    assert again.numpy() == pytest.approx(output.logits.numpy(), abs=1e-5)

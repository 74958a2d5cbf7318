"""What holds of every post-hoc score, and of those that read the embedding."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestNeighbors

from detector.model.network import Network
from detector.model.scores import SCORES
from detector.release.manifest import Architecture
from updater.benchmark.rejection import embedding, methods
from updater.benchmark.rejection.evidence import Evidence, EvidenceError, FitSet, evidence_of, known_of
from updater.benchmark.rejection.methods import POST_HOC
from updater.measures import auroc

CLASSES, WIDTH, FEATURES = 3, 8, 6
WEIGHT = 3 * np.eye(CLASSES, WIDTH, dtype="f")


def items(seed, count, *, unknown=False):
    """Known items lie along their class's axis; unknown ones along an axis that no class has."""
    rng = np.random.default_rng(seed)
    axis = np.full(count, CLASSES + 1) if unknown else np.arange(count) % CLASSES
    embedding = 2 * np.eye(WIDTH)[axis] + rng.normal(0, 0.2, (count, WIDTH))
    features = 5 * np.eye(FEATURES)[axis % FEATURES] + rng.normal(0, 1, (count, FEATURES))
    arrays = (embedding @ WEIGHT.T, embedding, features, rng.normal(3 if unknown else -3, 1, count))
    return Evidence(*(array.astype("f") for array in arrays))


TRAINED, HELD = ((items(seed, n), np.arange(n) % CLASSES) for seed, n in enumerate((60, 30)))
KNOWN = FitSet(*TRAINED, WEIGHT, np.zeros(CLASSES, "f"), *HELD, ("real", "blended", "inpainted"))
MANY = {"nnguide-published"}  # needs 100 training items
every_method = pytest.mark.parametrize("name", sorted(POST_HOC.keys() - MANY))


def part(evidence, rows):
    return Evidence(
        evidence.logits[rows], evidence.embedding[rows], evidence.features[rows], evidence.pseudo_logit[rows]
    )


# The discriminant is higher for likely forgeries.
@pytest.mark.parametrize("name", sorted(POST_HOC.keys() - MANY - {"discriminant"}))
def test_a_score_is_higher_for_less_familiar_items(name):
    score = POST_HOC[name](KNOWN)
    assert auroc(score(items(2, 60, unknown=True)), score(items(3, 60))) > 0.95


@every_method
def test_a_score_gives_one_float64_for_each_item_whatever_the_others_are(name):
    score, fresh = POST_HOC[name](KNOWN), items(3, 12)
    together = score(fresh)
    assert together.dtype == np.float64
    assert together.shape == (12,)
    alone = np.concatenate([score(part(fresh, slice(i, i + 1))) for i in range(12)])
    assert together == pytest.approx(alone, rel=1e-5, abs=1e-5)
    assert score(part(fresh, slice(0, 0))).shape == (0,)


@every_method
def test_scoring_changes_nothing_and_can_be_done_again(name):
    fresh, again = items(3, 12), items(3, 12)
    score = POST_HOC[name](KNOWN)
    assert (score(fresh) == score(again)).all()
    for field in ("logits", "embedding", "features", "pseudo_logit"):
        assert (getattr(fresh, field) == getattr(again, field)).all()


def test_one_name_is_one_score():
    own = {path.stem for path in Path(methods.__file__).parent.glob("*.py")}
    assert not own & SCORES.keys(), "a score of the gate lies in detector/scores alone"
    assert POST_HOC.keys() >= SCORES.keys()


HEAD_WEIGHT = np.random.default_rng(7).normal(0, 1, (3, 6)).astype("f")
BIAS = np.array([0.5, -0.5, 1], "f")


def clustered(seed, count):
    """Three clusters of embeddings, each along its class's weights."""
    rng = np.random.default_rng(seed)
    embedding = (HEAD_WEIGHT[np.arange(count) % 3] + rng.normal(0, 0.6, (count, 6))).astype("f")
    logits = embedding @ HEAD_WEIGHT.T + BIAS
    return Evidence(logits, embedding, np.zeros((count, 0), "f"), np.zeros(count, "f"))


TRAINING, FRESH = clustered(0, 36), clustered(1, 14)
CLUSTERED = FitSet(TRAINING, np.arange(36) % 3, HEAD_WEIGHT, BIAS)


def test_react_that_cuts_nothing_is_the_energy():
    calm = Evidence(*(getattr(TRAINING, of) for of in ("logits", "embedding", "features", "pseudo_logit")))
    assert embedding.fit_react(CLUSTERED, quantile=1.0)(calm) == pytest.approx(
        POST_HOC["energy"](CLUSTERED)(calm), abs=1e-5
    )


H, TRAINED = FRESH.embedding.astype(float), TRAINING.embedding.astype(float)

# Fixed items, and what OpenCIL's and OpenOOD's published code make of them, signs turned.
RNG = np.random.default_rng(11)
OWN_WEIGHT, OWN_BIAS = RNG.normal(0, 1, (4, 12)).astype("f"), RNG.normal(0, 0.5, 4).astype("f")


def rectified(classes):
    """Embeddings as they come out of a ReLU."""
    rows = np.maximum(OWN_WEIGHT[classes] + RNG.normal(0, 0.6, (len(classes), 12)), 0).astype("f")
    return Evidence(rows @ OWN_WEIGHT.T + OWN_BIAS, rows, np.zeros((len(classes), 0), "f"), OWN_BIAS)


RECTIFIED = FitSet(rectified(np.arange(120) % 4), np.arange(120) % 4, OWN_WEIGHT, OWN_BIAS)
THREE = rectified(np.arange(3))


@pytest.mark.parametrize(
    ("name", "released"),
    {
        "msp": [-0.99977, -0.58751, -0.79200],
        "energy": [-8.44968, -1.95607, -2.32350],
        "max_logit": [-8.44944, -1.42421, -2.09031],
        "gen": [1.57880, 3.11106, 2.98384],
        "react": [-6.37246, -1.91252, -2.34855],
        "klm": [0.17557, 0.01813, 0.09530],
        "relation": [-36.95360, -11.86052, -13.49203],
        "nnguide": [-65.88526, -5.10102, -9.31439],
        "nnguide-published": [-23.95135, -2.63345, -4.45150],
        "ash": [-9.03141, -2.93140, -2.88436],
        "scale": [-58.97932, -10.23778, -10.73762],
        "dice": [-5.19777, -1.71702, -2.70458],
        "she": [-8.81702, -2.61172, -2.51198],
        "rmd": [-1.28999, -2.07833, -0.31297],
        "gradnorm": [-42.93908, -9.62996, -19.94613],
    }.items(),
)
def test_a_score_is_that_of_the_published_code(name, released):
    assert POST_HOC[name](RECTIFIED)(THREE) == pytest.approx(released, rel=1e-5, abs=1e-5)


def test_she_refuses_a_class_that_is_never_answered_rightly():
    few = replace(CLUSTERED, evidence=part(TRAINING, slice(0, 2)), targets=CLUSTERED.targets[:2])
    for lacks, name in ((replace(CLUSTERED, targets=(CLUSTERED.targets + 1) % 3), 0), (few, 2)):
        with pytest.raises(EvidenceError, match=f"SHE has no pattern of class {name}"):
            embedding.fit_she(lacks)


def test_the_relative_distance_leaves_out_a_class_without_items():
    some = np.flatnonzero(CLUSTERED.targets != 1)
    fewer = replace(CLUSTERED, evidence=part(TRAINING, some), targets=CLUSTERED.targets[some])
    renamed = replace(fewer, targets=np.minimum(fewer.targets, 1))
    assert (embedding.fit_rmd(fewer)(FRESH) == embedding.fit_rmd(renamed)(FRESH)).all()


@pytest.mark.parametrize(("power", "least_edge"), [(1.0, 0.03), (4.0, 0.0)])
def test_relation_is_the_sum_of_the_ties_to_the_training_items(power, least_edge):
    likeness = cosine_similarity(FRESH.embedding.astype(float), TRAINING.embedding.astype(float))
    expected = []
    for row in np.maximum(likeness, 0) * (softmax(FRESH.logits, axis=1) @ softmax(TRAINING.logits, axis=1).T):
        expected.append(-sum(edge**power for edge in row if edge > least_edge))
    found = embedding.fit_relation(CLUSTERED, power=power, least_edge=least_edge)(FRESH)
    assert found == pytest.approx(expected, rel=1e-5)


def test_an_item_against_all_training_items_has_no_relation():
    lonely = FitSet(
        Evidence(*(a[:1] for a in (TRAINING.logits, TRAINING.embedding, TRAINING.features, BIAS))),
        np.array([0]),
        HEAD_WEIGHT,
        BIAS,
    )
    opposite = Evidence(TRAINING.logits[:1], -TRAINING.embedding[:1], TRAINING.features[:1], BIAS[:1])
    assert embedding.fit_relation(lonely)(opposite).tolist() == [0]
    assert embedding.fit_relation(lonely)(lonely.evidence)[0] < -0.3


@pytest.mark.parametrize(("items", "kept"), [(100, 100), (300, 128), (12_800, 256)])
def test_the_published_bank_is_whole_batches_of_more_than_a_hundredth(items, kept):
    many = FitSet(clustered(2, items), np.arange(items) % 3, HEAD_WEIGHT, BIAS)
    rows = np.arange(kept) * items // kept
    few = replace(many, evidence=part(many.evidence, rows), targets=many.targets[rows])
    wanted = embedding.fit_nnguide(few, neighbours=100)(FRESH)
    assert POST_HOC["nnguide-published"](many)(FRESH) == pytest.approx(wanted)


@pytest.mark.parametrize("neighbours", [1, 5])
def test_the_embedding_distance_is_scikit_learns_to_the_kth_neighbour(neighbours):
    unit = [e.embedding / np.linalg.norm(e.embedding, axis=1, keepdims=True) for e in (TRAINING, FRESH)]
    distance, _ = NearestNeighbors(n_neighbors=neighbours, algorithm="brute").fit(unit[0]).kneighbors(unit[1])
    found = embedding.fit_embedding_knn(CLUSTERED, neighbours=neighbours)(FRESH)
    assert found == pytest.approx(distance[:, -1], abs=1e-5)


def test_the_embedding_distance_does_not_see_an_embeddings_length():
    assert embedding.fit_embedding_knn(CLUSTERED)(
        Evidence(FRESH.logits, FRESH.embedding * 8, FRESH.features, FRESH.pseudo_logit)
    ) == pytest.approx(embedding.fit_embedding_knn(CLUSTERED)(FRESH), abs=1e-5)


@pytest.mark.parametrize("fit", [embedding.fit_nnguide, embedding.fit_embedding_knn])
def test_more_neighbours_than_training_items_are_refused(fit):
    with pytest.raises(EvidenceError, match="36 training items cannot give 37 neighbours"):
        fit(CLUSTERED, neighbours=37)


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_a_networks_logits_follow_from_its_embedding_and_its_head(head):
    torch.manual_seed(0)
    architecture = Architecture(backbone="lcnet_035", crop_px=32, width=8, forensic=False, head=head)
    network = Network(architecture, 3).eval()
    with torch.no_grad():
        output = network(torch.rand(5, 3, 32, 32) * 255, torch.eye(5))
    found = known_of(network, evidence_of(network, output), np.zeros(5, np.int64))
    assert found.evidence.logits == pytest.approx(output.logits.numpy())
    again = found.head(torch.tensor(found.evidence.embedding))
    assert again.numpy() == pytest.approx(output.logits.numpy(), abs=1e-5)


def test_what_tells_forgeries_from_reals_needs_both_among_the_known_classes():
    for names in ((), ("real", "camera/real", "phone/real")):
        with pytest.raises(EvidenceError, match="not both are among the known classes"):
            POST_HOC["discriminant"](replace(KNOWN, names=names))

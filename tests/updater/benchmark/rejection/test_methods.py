"""What holds of every post-hoc score, and of those that read the embedding."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_ood.detector import GEN, EnergyBased
from scipy.special import logsumexp, softmax
from scipy.stats import entropy
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestNeighbors
from torch import nn

from detector.model.network import Network
from detector.model.scores import SCORES, NetworkOutput
from detector.release.manifest import Architecture
from updater.benchmark.rejection import embedding, methods
from updater.benchmark.rejection import logits as logits_of
from updater.benchmark.rejection.evidence import Evidence, EvidenceError, FitSet, evidence_of, known_of
from updater.benchmark.rejection.logits import fit_odin, odin_scores
from updater.benchmark.rejection.methods import POST_HOC
from updater.data.training_data import LabelledCrops
from updater.measures import auroc

CLASSES, WIDTH, FEATURES = 3, 8, 6
WEIGHT = 3 * np.eye(CLASSES, WIDTH, dtype="f")


def items(seed, count, *, unknown=False):
    """Known items lie along their class's axis; unknown ones along an axis that no class has."""
    rng = np.random.default_rng(seed)
    axis = np.full(count, CLASSES + 1) if unknown else np.arange(count) % CLASSES
    embedding = 2 * np.eye(WIDTH)[axis] + rng.normal(0, 0.2, (count, WIDTH))
    features = 5 * np.eye(FEATURES)[axis % FEATURES] + rng.normal(0, 1, (count, FEATURES))
    pseudo = rng.normal(3 if unknown else -3, 1, count)
    arrays = (embedding @ WEIGHT.T, embedding, features, pseudo)
    return Evidence(*(array.astype("f") for array in arrays))


KNOWN = FitSet(
    items(0, 60),
    np.arange(60) % CLASSES,
    WEIGHT,
    np.zeros(CLASSES, "f"),
    items(1, 30),
    np.arange(30) % CLASSES,
    ("real", "blended", "inpainted"),
)
every_method = pytest.mark.parametrize("name", POST_HOC)


def part(evidence, rows):
    return Evidence(
        evidence.logits[rows], evidence.embedding[rows], evidence.features[rows], evidence.pseudo_logit[rows]
    )


@pytest.mark.parametrize(
    "name", sorted(POST_HOC.keys() - {"discriminant"})
)  # it is higher for likely forgeries
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
    calm = Evidence(
        *(getattr(TRAINING, name) for name in ("logits", "embedding", "features", "pseudo_logit"))
    )
    assert embedding.fit_react(CLUSTERED, quantile=1.0)(calm) == pytest.approx(
        POST_HOC["energy"](CLUSTERED)(calm), abs=1e-5
    )


H, W, TRAINED = (rows.astype(float) for rows in (FRESH.embedding, HEAD_WEIGHT, TRAINING.embedding))
FACTOR = np.exp(H.sum(1) / np.sort(H, 1)[:, -3:].sum(1))[:, None]
CONTRIBUTIONS = W * TRAINED.mean(0)


@pytest.mark.parametrize(
    ("fit", "activations", "weight"),
    [
        (embedding.fit_react, np.minimum(H, np.quantile(TRAINED, 0.5)), W),
        (embedding.fit_ash, np.where(np.sort(H, 1)[:, -3:-2] <= H, H, 0) * FACTOR, W),
        (embedding.fit_scale, H * FACTOR, W),
        (embedding.fit_dice, H, np.where(np.median(CONTRIBUTIONS) < CONTRIBUTIONS, W, 0)),
    ],
)
def test_a_reshaped_score_is_the_energy_of_what_its_paper_leaves_of_activations_and_weights(
    fit, activations, weight
):
    expected = -logsumexp(activations @ weight.T + BIAS, axis=1)
    assert fit(CLUSTERED, quantile=0.5)(FRESH) == pytest.approx(expected)


def test_she_is_the_product_with_the_mean_of_the_rightly_answered():
    right = np.where(TRAINING.logits.argmax(1) == CLUSTERED.targets, CLUSTERED.targets, -1)
    patterns = np.stack([TRAINED[right == c].mean(0) for c in range(3)])
    expected = -(H * patterns[FRESH.logits.argmax(1)]).sum(1)
    assert embedding.fit_she(CLUSTERED)(FRESH) == pytest.approx(expected, rel=1e-5)


def test_she_refuses_a_class_that_is_never_answered_rightly():
    with pytest.raises(EvidenceError, match="SHE has no pattern of a class"):
        embedding.fit_she(replace(CLUSTERED, targets=(CLUSTERED.targets + 1) % 3))


def test_the_relative_distance_is_the_nearest_class_less_all_classes_together():
    means = np.stack([TRAINED[CLUSTERED.targets == c].mean(0) for c in range(3)])
    shared, of_all = np.cov((TRAINED - means[CLUSTERED.targets]).T, bias=True), np.cov(TRAINED.T, bias=True)

    def squared(mean, covariance):
        return ((H - mean) @ np.linalg.inv(covariance) * (H - mean)).sum(1)

    expected = np.min([squared(mean, shared) for mean in means], axis=0) - squared(TRAINED.mean(0), of_all)
    assert len(TRAINED) * embedding.fit_rmd(CLUSTERED)(FRESH) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_gradnorm_is_the_length_of_the_gradient_of_the_heads_weights():
    expected = []
    for row in torch.tensor(H):
        weight = torch.tensor(W, requires_grad=True)
        (-torch.log_softmax(weight @ row + torch.tensor(BIAS), 0).mean()).backward()
        expected.append(-float(weight.grad.abs().sum()))
    assert embedding.fit_gradnorm(CLUSTERED)(FRESH) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("power", "least_edge"), [(1.0, 0.03), (4.0, 0.0)])
def test_relation_is_the_sum_of_the_ties_to_the_training_items(power, least_edge):
    likeness = cosine_similarity(FRESH.embedding.astype(float), TRAINING.embedding.astype(float))
    agreement = softmax(FRESH.logits, axis=1) @ softmax(TRAINING.logits, axis=1).T
    expected = []
    for row in np.maximum(likeness, 0) * agreement:
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


def test_nnguide_is_the_energy_times_the_mean_of_the_best_guides():
    confidence = logsumexp(TRAINING.logits.astype(float), axis=1)
    guides = cosine_similarity(FRESH.embedding.astype(float), TRAINING.embedding.astype(float)) * confidence
    best = np.sort(guides, axis=1)[:, -10:].mean(1)
    expected = -best * logsumexp(FRESH.logits.astype(float), axis=1)
    assert embedding.fit_nnguide(CLUSTERED)(FRESH) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("neighbours", [1, 5])
def test_the_embedding_distance_is_scikit_learns_to_the_kth_neighbour(neighbours):
    unit = [e.embedding / np.linalg.norm(e.embedding, axis=1, keepdims=True) for e in (TRAINING, FRESH)]
    distance, _ = NearestNeighbors(n_neighbors=neighbours, algorithm="brute").fit(unit[0]).kneighbors(unit[1])
    found = embedding.fit_embedding_knn(CLUSTERED, neighbours=neighbours)(FRESH)
    assert found == pytest.approx(distance[:, -1], abs=1e-5)


def test_the_embedding_distance_does_not_see_an_embeddings_length():
    longer = Evidence(FRESH.logits, FRESH.embedding * 8, FRESH.features, FRESH.pseudo_logit)
    assert embedding.fit_embedding_knn(CLUSTERED)(longer) == pytest.approx(
        embedding.fit_embedding_knn(CLUSTERED)(FRESH), abs=1e-5
    )


@pytest.mark.parametrize("fit", [embedding.fit_nnguide, embedding.fit_embedding_knn])
def test_more_neighbours_than_training_items_are_refused(fit):
    with pytest.raises(EvidenceError, match="36 training items cannot give 37 neighbours"):
        fit(CLUSTERED, neighbours=37)


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_a_networks_logits_follow_from_its_embedding_and_its_head(head):
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


def test_what_tells_forgeries_from_reals_needs_both_among_the_known_classes():
    for names in ((), ("real", "camera/real", "phone/real")):
        with pytest.raises(EvidenceError, match="not both are among the known classes"):
            POST_HOC["discriminant"](replace(KNOWN, names=names))


# The scores that read the logits, MSP, MaxLogit, energy, GEN, KL matching, pseudo; and ODIN's step.
ROWS = st.lists(st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3), min_size=1, max_size=6)


def evidence(logits, pseudo_logit=None):
    rows = np.asarray(logits, np.float32)
    n = len(rows)
    pseudo_logit = np.zeros(n) if pseudo_logit is None else pseudo_logit
    return Evidence(rows, np.zeros((n, 2), "f"), np.zeros((n, 0), "f"), np.asarray(pseudo_logit, np.float32))


def known(logits):
    found = evidence(logits)
    k = found.logits.shape[1]
    return FitSet(found, found.logits.argmax(1), np.zeros((k, 2), "f"), np.zeros(k, "f"))


ANY = known([[0, 0, 0]])


@given(ROWS)
def test_msp_is_scipys_largest_softmax_turned_round(rows):
    assert logits_of.fit_msp(ANY)(evidence(rows)) == pytest.approx(-softmax(rows, axis=1).max(1))


@given(ROWS, st.integers(-64, 64))
def test_a_constant_added_to_the_logits_leaves_msp_gen_and_kl_matching_alone(rows, constant):
    # Multiples of 1/8: so the sums are exact in float32.
    logits = np.round(np.array(rows) * 8) / 8
    typical = known([[3, 0, 0], [2, 1, 0], [0, 2, 1]])
    for fit in (logits_of.fit_msp, logits_of.fit_gen, logits_of.fit_klm):
        score = fit(typical)
        assert score(evidence(logits + constant)) == pytest.approx(score(evidence(logits)), abs=1e-9)


@given(ROWS, st.integers(-64, 64))
def test_a_constant_added_to_the_logits_lowers_energy_and_max_logit_by_it(rows, constant):
    logits = np.round(np.array(rows) * 8) / 8
    for name in ("energy", "max_logit"):
        score = POST_HOC[name](ANY)
        assert score(evidence(logits + constant)) == pytest.approx(score(evidence(logits)) - constant)


def test_energy_agrees_with_pytorch_ood_and_scipy_and_tells_confident_items_apart():
    rows = np.random.default_rng(0).normal(0, 3, (20, 3)).astype("f")
    found = POST_HOC["energy"](ANY)(evidence(rows))
    oracle = EnergyBased.score(torch.tensor(rows, dtype=torch.float64)).numpy()
    assert found == pytest.approx(oracle, rel=1e-12)
    assert found == pytest.approx(-logsumexp(rows.astype(float), axis=1), rel=1e-12)


def test_energy_of_a_confident_row_is_lower_than_of_a_flat_one():
    confident, flat = POST_HOC["energy"](ANY)(evidence([[9, 0, 0], [1, 1, 1]]))
    assert flat == pytest.approx(-(1 + math.log(3)))
    assert confident < flat


def test_max_logit_is_the_largest_logit_turned_round():
    assert logits_of.fit_max_logit(ANY)(evidence([[1, 4, 2], [-3, -2, -5]])).tolist() == [-4, 2]


def test_gen_of_four_equal_classes_is_worked_by_hand():
    score = logits_of.fit_gen(known([[0, 0, 0, 0]]))(evidence([[7, 7, 7, 7]]))
    assert score == pytest.approx([4 * (1 / 4 * 3 / 4) ** 0.1])


def test_gen_is_pytorch_oods_mean_times_the_number_of_terms_where_nothing_is_clamped():
    rows = np.random.default_rng(1).normal(0, 1, (20, 5))
    for largest, terms in ((100, 5), (2, 2)):
        found = logits_of.fit_gen(known(rows), largest=largest)(evidence(rows))
        oracle = GEN.score(torch.tensor(rows.astype("f")), gamma=0.1, M=terms).numpy()
        assert found == pytest.approx(terms * oracle, rel=1e-4)


def test_gen_orders_answers_so_confident_that_pytorch_ood_gives_them_one_score():
    rows = [[20, 0, 0], [30, 0, 0]]
    less, more = logits_of.fit_gen(ANY)(evidence(rows))
    assert less > 1.2 * more
    clamped = GEN.score(torch.tensor(rows, dtype=torch.float64))
    assert float(clamped[0]) == pytest.approx(float(clamped[1]))


def test_kl_matching_agrees_with_scipys_divergence_from_the_typical_posteriors():
    rng = np.random.default_rng(2)
    training, fresh = rng.normal(0, 2, (40, 3)), rng.normal(0, 2, (15, 3))
    training, fresh = training.astype("f").astype(float), fresh.astype("f").astype(float)
    p = softmax(training, axis=1)
    typical = [p[p.argmax(1) == k].mean(0) for k in range(3)]
    expected = [min(entropy(row, d) for d in typical) for row in softmax(fresh, axis=1)]
    assert logits_of.fit_klm(known(training))(evidence(fresh)) == pytest.approx(expected)


def test_a_class_that_is_never_named_has_no_typical_posterior():
    score = logits_of.fit_klm(known([[4, 0, 0], [0, 4, 0]]))
    of_first, of_third = score(evidence([[4, 0, 0], [0, 0, 4]]))
    assert of_first == pytest.approx(0, abs=1e-12)
    assert of_third > 3


def test_kl_matching_stays_finite_where_a_posterior_underflows():
    score = logits_of.fit_klm(known([[2000, 0, 0], [0, 2000, 0]]))
    assert score(evidence([[2000, 0, 0]])) == pytest.approx([0])
    assert score(evidence([[0, 0, 2000]])) > 1e300


def test_the_pseudo_score_is_the_log_odds_of_the_extra_class():
    rows, extra = np.array([[1.0, 2, 3], [4, 0, 0]]), np.array([5.0, -1])
    posterior = softmax(np.column_stack([rows, extra]), axis=1)
    expected = np.log(posterior[:, 3] / posterior[:, :3].sum(1))
    assert POST_HOC["pseudo"](ANY)(evidence(rows, extra)) == pytest.approx(expected)


SIDE = 32


def labelled(counts, side=SIDE):
    rng = np.random.default_rng(0)
    names = tuple(f"{i:03d}" for i in range(len(counts)))
    return LabelledCrops(
        ids=names,
        families=("real",) * len(counts),
        sources=("s",) * len(counts),
        groups=names,
        crops=rng.integers(50, 200, (sum(counts), side, side, 3)).astype(np.uint8),
        starts=np.cumsum([0, *counts]),
    )


class LinearNetwork(nn.Module):
    """Logits (m, -m), m the mean pixel minus 100: the gradient's sign is the same everywhere."""

    def forward(self, crops, pooling):
        mean = pooling @ crops.mean((1, 2, 3)) - 100
        nothing = crops.new_zeros(len(mean))
        return NetworkOutput(torch.stack([mean, -mean], 1), nothing, nothing[:, None], nothing[:, None])


def test_a_linear_networks_score_is_worked_by_hand():
    items = labelled([1, 3, 2])
    means = [
        items.crops[a:b].mean((1, 2, 3)).mean() for a, b in zip(items.starts, items.starts[1:], strict=False)
    ]
    # The step is towards the answer: one epsilon up where the mean is above 100, and one down below.
    moved = np.array([m - 100 + 5 * np.sign(m - 100) for m in means])
    expected = -softmax(np.stack([moved, -moved], 1) / 1000, axis=1).max(1)
    assert odin_scores(LinearNetwork(), items, epsilon=5.0) == pytest.approx(expected, rel=1e-6)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Network(Architecture(backbone="lcnet_035", crop_px=SIDE, width=8), 3).eval()


def test_a_networks_score_is_that_of_a_step_along_the_gradient(network):
    items = labelled([2])
    images = torch.tensor(items.crops).permute(0, 3, 1, 2).float().requires_grad_()
    pooling = torch.full((1, 2), 0.5)
    logits = network(images, pooling).logits / 1000
    (gradient,) = torch.autograd.grad(-logits.log_softmax(1).max(), images)
    with torch.no_grad():
        moved = network(images - 0.357 * gradient.sign(), pooling).logits.double() / 1000
    assert odin_scores(network, items) == pytest.approx(-moved.softmax(1).max(1).values.numpy(), rel=1e-6)
    assert odin_scores(network, items) != pytest.approx(odin_scores(network, items, epsilon=0.0), rel=1e-6)


def test_without_a_step_it_is_the_temperature_alone_and_needs_no_crops(network):
    items = labelled([2, 1])
    pooling = torch.tensor([[0.5, 0.5, 0], [0, 0, 1]])
    with torch.no_grad():
        output = network(torch.tensor(items.crops).permute(0, 3, 1, 2).float(), pooling)
    evidence = evidence_of(network, output)
    score = fit_odin(known_of(network, evidence, np.array([0, 1])))
    assert score(evidence) == pytest.approx(odin_scores(network, items, epsilon=0.0), abs=1e-7)
    assert score(evidence) == pytest.approx(-softmax(evidence.logits / 1000, axis=1).max(1), rel=1e-6)


def test_a_small_step_makes_an_item_more_familiar(network):
    items = labelled([1, 1, 1])
    assert (odin_scores(network, items, epsilon=0.01) < odin_scores(network, items, epsilon=0.0)).all()


def test_an_item_scores_the_same_alone_and_in_company(network):
    items = labelled([1, 2, 1, 1, 2])
    together = odin_scores(network, items)
    alone = np.concatenate([odin_scores(network, items.take([i])) for i in range(5)])
    assert together.dtype == np.float64
    # Where a gradient is nearly 0 the size of a batch may turn its sign: 1e-6 of a score that moves by 1e-4.
    assert together == pytest.approx(alone, abs=1e-6)


def test_no_item_gives_no_score_and_progress_counts_items(network):
    seen = []
    assert odin_scores(network, labelled([]).take([])).shape == (0,)
    odin_scores(network, labelled([1] * 5), progress=lambda *at: seen.append(at))
    assert seen == [(4, 5), (5, 5)]


def test_the_networks_own_gradients_stay_empty(network):
    odin_scores(network, labelled([1]))
    assert all(parameter.grad is None for parameter in network.parameters())

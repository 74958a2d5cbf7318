"""The scores that read the forensic features: distances to the reference set, Mahalanobis, the fused gate."""

from dataclasses import replace
from math import exp, log, sqrt

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from pytorch_ood.detector import Mahalanobis
from sklearn.covariance import LedoitWolf
from sklearn.neighbors import NearestNeighbors

from detector.model.scores import SCORES, nearest, own_distance
from detector.release.manifest import FEATURE_WIDTH, TRACE_COLUMNS
from updater.benchmark.rejection import augmix, forensic, heads
from updater.benchmark.rejection.evidence import Evidence, EvidenceError, FitSet
from updater.benchmark.rejection.heads import FineTuning
from updater.benchmark.rejection.methods import HEADS, POST_HOC
from updater.benchmark.synthetic.families import FAMILIES
from updater.candidate.calibrate import fit_gate
from updater.candidate.evaluate import unknown_scores
from updater.candidate.gate_inputs import gate_inputs, network_scores
from updater.candidate.reference_set import CalibrationError, make_reference
from updater.measures import auroc, balanced_weights, weighted_quantile, within_class_whitening

NAMES = np.array(["real", "blended"])


def items(seed, count, width=5):
    """Two classes, apart in the features and in the logits; the features are correlated."""
    rng = np.random.default_rng(seed)
    mixing = np.eye(width) + 0.2 * np.random.default_rng(9).normal(size=(width, width))
    centre = np.where(np.arange(count) % 2, 4.0, 0.0)[:, None]
    features = (rng.normal(size=(count, width)) @ mixing + centre).astype("f")
    logits = rng.normal(0, 1, (count, 2)) + 4 * np.eye(2)[np.arange(count) % 2]
    embedding = rng.normal(0, 1, (count, 3))
    return Evidence(logits.astype("f"), embedding.astype("f"), features, rng.normal(-3, 1, count).astype("f"))


def known(count=40, held=30, width=5):
    return FitSet(
        items(0, count, width),
        np.arange(count) % 2,
        np.zeros((2, 3), "f"),
        np.zeros(2, "f"),
        items(1, held, width),
        np.arange(held) % 2,
        ("real", "blended"),
    )


KNOWN, FRESH = known(), items(2, 12)


def whitened():
    mean, matrix = within_class_whitening(KNOWN.evidence.features, KNOWN.targets.astype(str))
    return (KNOWN.evidence.features - mean) @ matrix, (FRESH.features - mean) @ matrix


def test_the_forensic_distance_is_scikit_learns_mean_over_the_whitened_neighbours():
    reference, fresh = whitened()
    distance, _ = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(reference).kneighbors(fresh)
    assert forensic.fit_forensic_knn(KNOWN)(FRESH) == pytest.approx(distance.mean(1), rel=1e-4)


def test_the_forensic_distance_is_the_numerator_of_the_gates_novelty():
    reference, fresh = (torch.from_numpy(rows) for rows in whitened())
    own = own_distance(reference)
    ratio, index, distance = nearest(fresh, reference, own)
    assert forensic.fit_forensic_knn(KNOWN)(FRESH) == pytest.approx(distance.mean(1).numpy(), rel=1e-4)
    assert POST_HOC["novelty"](KNOWN)(FRESH) == pytest.approx(ratio.numpy(), rel=1e-5)
    assert POST_HOC["novelty"](KNOWN)(FRESH) == pytest.approx(
        forensic.fit_forensic_knn(KNOWN)(FRESH) / own[index].mean(1).numpy(), rel=1e-4
    )


def test_each_group_of_traces_is_whitened_and_measured_alone():
    many, fresh = known(width=FEATURE_WIDTH), items(2, 12, FEATURE_WIDTH)
    alone = []
    for columns in TRACE_COLUMNS:
        part = FitSet(
            replace(many.evidence, features=many.evidence.features[:, columns]),
            many.targets,
            many.head_weight,
            many.head_bias,
        )
        alone.append(POST_HOC["novelty"](part)(replace(fresh, features=fresh.features[:, columns])))
    assert POST_HOC["trace_novelty"](many)(fresh) == pytest.approx(np.mean(alone, axis=0), rel=1e-3)


def test_forensic_distances_do_not_see_the_units_of_the_features():
    units = np.array([10, 0.1, 3, 1, 50], "f")

    def in_units(of):
        return Evidence(of.logits, of.embedding, of.features * units, of.pseudo_logit)

    changed = FitSet(in_units(KNOWN.evidence), KNOWN.targets, KNOWN.head_weight, KNOWN.head_bias)
    for name in ("forensic_knn", "novelty", "trace_novelty", "mahalanobis"):
        fit = POST_HOC[name]
        assert fit(changed)(in_units(FRESH)) == pytest.approx(fit(KNOWN)(FRESH), rel=1e-3)


def test_mahalanobis_is_the_distance_under_scikit_learns_shrunk_covariance():
    raw, targets = KNOWN.evidence.features.astype(float), KNOWN.targets
    means = np.stack([raw[targets == c].mean(0) for c in range(2)])
    centred = raw - means[targets]
    scale = centred.std(0)
    precision = LedoitWolf(assume_centered=True).fit(centred / scale).get_precision() / np.outer(scale, scale)
    away = FRESH.features[:, None].astype(float) - means
    expected = np.einsum("ncf,fg,ncg->nc", away, precision, away).min(1)
    assert forensic.fit_mahalanobis(KNOWN)(FRESH) == pytest.approx(expected, rel=1e-3)


def test_mahalanobis_of_many_items_is_pytorch_oods_but_for_its_half_and_its_sum():
    many = known(count=20_000)
    oracle = Mahalanobis(encoder=None).fit_features(
        torch.tensor(many.evidence.features, dtype=torch.float32), torch.tensor(many.targets)
    )
    expected = 2 * 20_000 * oracle.predict_features(torch.tensor(FRESH.features)).numpy()
    assert forensic.fit_mahalanobis(many)(FRESH) == pytest.approx(expected, rel=0.02)


def gate_parts(evidence):
    families = [KNOWN.names[target] for target in KNOWN.targets]
    reference = make_reference(KNOWN.evidence.output(), families, [f"{i:03d}" for i in range(40)])
    return gate_inputs(evidence.output(), network_scores(reference, frozen=False))


@pytest.mark.parametrize("name", SCORES)
def test_a_score_of_the_gate_has_the_same_values_as_a_score_of_rejection(name):
    assert POST_HOC[name](KNOWN)(FRESH) == pytest.approx(gate_parts(FRESH).scores[name], rel=1e-5)


def test_the_fused_score_is_what_a_fitted_gate_gives():
    assert KNOWN.calibration is not None
    assert KNOWN.calibration_targets is not None
    families = NAMES[KNOWN.calibration_targets]
    apart = np.array([f"{i:03d}" for i in range(len(families))])
    assert forensic.fit_fused(KNOWN)(FRESH) == pytest.approx(
        unknown_scores(gate_parts(FRESH), fit_gate(gate_parts(KNOWN.calibration), families, apart)), abs=1e-5
    )


def test_the_fused_score_is_the_sum_of_its_clipped_standards():
    assert KNOWN.calibration is not None
    held, fresh = (gate_parts(of) for of in (KNOWN.calibration, FRESH))
    weights = balanced_weights(np.arange(30) % 2)
    expected = np.zeros(len(FRESH))
    for name, entry in SCORES.items():
        if entry.standard:
            expected += entry.weight * np.clip(fresh.scores[name], -6, 6)
            continue
        middle = weighted_quantile(held.scores[name], weights, 0.5)
        spread = weighted_quantile(held.scores[name], weights, 0.84) - middle
        expected += entry.weight * np.clip((fresh.scores[name] - middle) / spread, -6, 6)
    assert forensic.fit_fused(KNOWN)(FRESH) == pytest.approx(expected, abs=1e-4)


def test_without_calibration_items_nothing_can_be_fused():
    bare = FitSet(KNOWN.evidence, KNOWN.targets, KNOWN.head_weight, KNOWN.head_bias)
    with pytest.raises(EvidenceError, match="needs calibration items"):
        forensic.fit_fused(bare)


def test_without_forensic_features_no_score_that_reads_them_can_be_fitted_but_the_fused():
    blind = known(width=0)
    for name in ("forensic_knn", "novelty", "embedding_novelty", "trace_novelty", "mahalanobis"):
        with pytest.raises(EvidenceError, match="the network has none"):
            POST_HOC[name](blind)
    assert np.isfinite(forensic.fit_fused(blind)(items(2, 12, width=0))).all()


def test_too_few_items_make_no_reference():
    with pytest.raises(CalibrationError, match="8 training items are too few"):
        forensic.fit_forensic_knn(known(count=8))


# What holds of every head that is trained on frozen embeddings; LogitNorm's, T2FNorm's, AugMix's by hand.
every_head = pytest.mark.parametrize("name", HEADS)
SHORT = FineTuning(steps=12, batch=32)
UNFIT = ("ber-published", "vos-published", "npos-published")
"""Published margins are of energies that a head of so few classes does not have."""


def auc_of_what_lies_between(name, space, old):
    """Of what lies between two classes (positive), against fresh items of them."""
    between = (space.means + np.roll(space.means, 1, axis=0)) / 2
    score = HEADS[name](space.known(), old, 0)
    return auroc(score(space.around(between, 20, 3)), score(space.around(space.means, 20, 2)))


@pytest.mark.parametrize("name", [name for name in HEADS if name not in UNFIT])
def test_what_lies_between_the_classes_scores_less_familiar_than_fresh_items_of_them(name, space, old):
    assert auc_of_what_lies_between(name, space, old) > 0.9


@pytest.mark.parametrize("name", UNFIT)
def test_what_is_published_for_other_networks_does_not_hold_at_this_width(name, space, old):
    assert auc_of_what_lies_between(name, space, old) < 0.85


@every_head
def test_the_same_seed_gives_the_same_head_and_leaves_the_global_state(name, space, old):
    items = space.around(space.means, 3, 4)
    before = torch.get_rng_state()
    first, again, other = (HEADS[name](space.known(), old, seed, SHORT)(items) for seed in (5, 5, 6))
    assert torch.equal(before, torch.get_rng_state())
    assert first.dtype == np.float64
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@every_head
def test_a_first_step_and_a_step_with_exemplars_alone_have_a_head_too(name, space, old):
    items = space.around(space.means, 3, 4)
    for which in (np.zeros_like(old), np.ones_like(old)):
        assert np.isfinite(HEADS[name](space.known(), which, 0, SHORT)(items)).all()


NEW, EXEMPLAR = (3.0, 4.0), (0.0, 1.0)


def evidence(*rows):
    """The head is the identity, so that an embedding is its logits."""
    found = np.array(rows, "f")
    return Evidence(found, found, np.zeros((len(found), 0), "f"), np.zeros(len(found), "f"))


def known_versions(versions=()):
    return FitSet(
        evidence(NEW, EXEMPLAR), np.array([0, 1]), np.eye(2, dtype="f"), np.zeros(2, "f"), versions=versions
    )


def cross_entropy(logits, target):
    return log(sum(exp(one) for one in logits)) - logits[target]


@pytest.fixture
def loss_of(monkeypatch):
    """The loss of a batch of one new item and one exemplar, as the head begins."""
    losses = []
    monkeypatch.setattr(heads, "fine_tune", lambda head, loss, *_: losses.append(loss(torch.Generator())))

    def loss_of(fit, items, old=(False, True)):
        score = fit(items, np.array(old), 0, FineTuning(batch=1))
        assert score(evidence(NEW))[0] == pytest.approx(-log(exp(3) + exp(4)))
        return losses[-1].item()

    return loss_of


def test_logit_norm_reads_logits_of_length_25(loss_of):
    # 1 / 0.04 = 25, and |(3, 4)| = 5.
    expected = cross_entropy((15, 20), 0) + cross_entropy((0, 25), 1)
    assert loss_of(heads.fit_logit_norm, known_versions()) == pytest.approx(expected, rel=1e-4)


def test_t2f_norm_reads_features_of_length_10(loss_of):
    expected = cross_entropy((6, 8), 0) + cross_entropy((0, 10), 1)
    assert loss_of(heads.fit_t2f_norm, known_versions()) == pytest.approx(expected, rel=1e-4)


def test_a_first_step_has_the_loss_of_its_items_alone(loss_of):
    alone = FitSet(evidence(NEW), np.array([0]), np.eye(2, dtype="f"), np.zeros(2, "f"))
    assert loss_of(heads.fit_t2f_norm, alone, (False,)) == pytest.approx(cross_entropy((6, 8), 0), rel=1e-4)


def test_augmix_adds_twelve_times_the_divergence_of_the_versions(loss_of):
    same = evidence(NEW, EXEMPLAR)
    plain = cross_entropy(NEW, 0) + cross_entropy(EXEMPLAR, 1)
    assert loss_of(augmix.fit, known_versions((same, same))) == pytest.approx(plain, rel=1e-4)
    # Both sure of class 0 and 1 in turn: the middle of (1, 0), (1, 0) and (0, 1) is (2/3, 1/3).
    first, second = evidence((40, 0), (40, 0)), evidence((0, 40), (0, 40))
    sure = FitSet(first, np.array([0, 0]), np.eye(2, dtype="f"), np.zeros(2, "f"), versions=(first, second))
    assert loss_of(augmix.fit, sure) == pytest.approx(2 * 12 * (2 * log(3 / 2) + log(3)) / 3, rel=1e-3)


def test_regmixup_takes_one_mean_over_items_and_mixtures():
    rows, target = torch.tensor([NEW, EXEMPLAR]), torch.tensor([0, 1])
    head = torch.nn.Linear(2, 2)
    with torch.no_grad():
        head.weight.copy_(torch.eye(2))
        head.bias.zero_()
        value = heads.mixing_loss(head, rows, target, torch.tensor([1, 0]), 0.75)
    # 0.75 (3, 4) + 0.25 (0, 1) and the other way round.
    mixed = [(2.25, 3.25), (0.75, 1.75)]
    plain = (cross_entropy(NEW, 0) + cross_entropy(EXEMPLAR, 1)) / 2
    own = (cross_entropy(mixed[0], 0) + cross_entropy(mixed[1], 1)) / 2
    other = (cross_entropy(mixed[0], 1) + cross_entropy(mixed[1], 0)) / 2
    assert value.item() == pytest.approx((plain + 0.75 * own + 0.25 * other) / 2, rel=1e-5)


def test_regmixup_draws_shares_near_one_half(monkeypatch, space, old):
    shares = []

    def spy(head, rows, target, partner, share):
        assert sorted(partner.tolist()) == list(range(8))
        shares.append(share)
        return head(rows).sum() * 0

    monkeypatch.setattr(heads, "mixing_loss", spy)
    heads.fit_regmixup(space.known(), old, 0, FineTuning(steps=200, batch=8))
    # Beta(10, 10): two draws a step, of new items and of exemplars.
    assert len(shares) == 400
    assert np.std(shares) == pytest.approx(sqrt(100 / (400 * 21)), abs=0.01)


# AugMix's versions
CROPS = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), np.uint8).repeat(4, 1).repeat(4, 2)


def test_the_divergence_reaches_every_logit_of_every_version():
    versions = tuple(torch.tensor([[1.0, 0, -1]]).mul(n).requires_grad_() for n in (1, 2, -3))
    torch.autograd.backward(augmix.jensen_shannon(versions))
    assert all((version.grad != 0).all() for version in versions)


def test_at_opencils_severity_ten_of_thirteen_operations_change_nothing():
    picture = Image.fromarray(CROPS[0])
    changed = {n: np.asarray(operation(picture)) for n, (_, operation) in augmix.OPERATIONS.items()}
    assert len(changed) == 13
    assert {n for n, crop in changed.items() if not np.array_equal(crop, CROPS[0])} == {
        "autocontrast",
        "equalize",
        "posterize",
    }
    assert np.array_equal(changed["posterize"], CROPS[0] // 16 * 16)


@pytest.mark.parametrize("family", FAMILIES)
def test_augmix_uses_nothing_of_a_left_out_familys_kinds(family, monkeypatch):
    used = set()
    for name, (kind, _) in augmix.OPERATIONS.items():

        def spy(image, name=name):
            used.add(name)
            return image

        monkeypatch.setitem(augmix.OPERATIONS, name, (kind, spy))
    without = FAMILIES[family].kinds
    for seed in range(40):
        augmix.augment_all(np.random.default_rng(seed), CROPS[:1], without)
    assert used == {name for name, (kind, _) in augmix.OPERATIONS.items() if kind not in without}


def test_a_version_is_a_mixture_of_chains_and_without_blending_one_chain(monkeypatch):
    monkeypatch.setattr(augmix, "OPERATIONS", {"inverted": ("", ImageOps.invert)})
    rng = np.random.default_rng(0)
    chains = augmix.augment_all(rng, CROPS, frozenset({"blending"}))
    assert all(np.array_equal(a, b) or np.array_equal(a, 255 - b) for a, b in zip(chains, CROPS, strict=True))
    (mixture,) = augmix.augment_all(rng, CROPS[:1], frozenset())
    clear = np.abs(255 - 2.0 * CROPS[0]) > 100
    share = ((mixture.astype(float) - CROPS[0]) / (255 - 2.0 * CROPS[0]))[clear]
    assert 0 < np.median(share) < 1
    assert share == pytest.approx(np.median(share), abs=0.03)

"""The scores that read the forensic features: distances to the reference set, Mahalanobis, the fused gate."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pytorch_ood.detector import Mahalanobis
from sklearn.covariance import LedoitWolf
from sklearn.neighbors import NearestNeighbors

from detector.model.scores import SCORES, nearest, own_distance
from detector.release.manifest import FEATURE_WIDTH, TRACE_COLUMNS
from updater.benchmark.rejection import forensic
from updater.benchmark.rejection.evidence import Evidence, EvidenceError, FitSet
from updater.benchmark.rejection.methods import POST_HOC
from updater.candidate.calibrate import fit_gate, unknown_scores
from updater.candidate.gate_inputs import GateInputs, gate_inputs
from updater.candidate.reference_set import CalibrationError, make_reference
from updater.measures import balanced_weights, weighted_quantile, within_class_whitening

NAMES = np.array(["real", "blended"])


def items(seed: int, count: int, width: int = 5) -> Evidence:
    """Two classes, apart in the features and in the logits; the features are correlated."""
    rng = np.random.default_rng(seed)
    mixing = np.eye(width) + 0.2 * np.random.default_rng(9).normal(size=(width, width))
    centre = np.where(np.arange(count) % 2, 4.0, 0.0)[:, None]
    features = (rng.normal(size=(count, width)) @ mixing + centre).astype("f")
    logits = rng.normal(0, 1, (count, 2)) + 4 * np.eye(2)[np.arange(count) % 2]
    embedding = rng.normal(0, 1, (count, 3))
    return Evidence(logits.astype("f"), embedding.astype("f"), features, rng.normal(-3, 1, count).astype("f"))


def known(count: int = 40, held: int = 30, width: int = 5) -> FitSet:
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


def whitened() -> tuple[np.ndarray, np.ndarray]:
    mean, matrix = within_class_whitening(KNOWN.evidence.features, KNOWN.targets.astype(str))
    return (KNOWN.evidence.features - mean) @ matrix, (FRESH.features - mean) @ matrix


def test_the_forensic_distance_is_scikit_learns_mean_over_the_whitened_neighbours() -> None:
    reference, fresh = whitened()
    distance, _ = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(reference).kneighbors(fresh)
    assert forensic.fit_forensic_knn(KNOWN)(FRESH) == pytest.approx(distance.mean(1), rel=1e-4)


def test_the_forensic_distance_is_the_numerator_of_the_gates_novelty() -> None:
    reference, fresh = (torch.from_numpy(rows) for rows in whitened())
    own = own_distance(reference)
    ratio, index, distance = nearest(fresh, reference, own)
    assert forensic.fit_forensic_knn(KNOWN)(FRESH) == pytest.approx(distance.mean(1).numpy(), rel=1e-4)
    assert POST_HOC["novelty"](KNOWN)(FRESH) == pytest.approx(ratio.numpy(), rel=1e-5)
    assert POST_HOC["novelty"](KNOWN)(FRESH) == pytest.approx(
        forensic.fit_forensic_knn(KNOWN)(FRESH) / own[index].mean(1).numpy(), rel=1e-4
    )


def test_each_group_of_traces_is_whitened_and_measured_alone() -> None:
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


def test_forensic_distances_do_not_see_the_units_of_the_features() -> None:
    units = np.array([10, 0.1, 3, 1, 50], "f")

    def in_units(of: Evidence) -> Evidence:
        return Evidence(of.logits, of.embedding, of.features * units, of.pseudo_logit)

    changed = FitSet(in_units(KNOWN.evidence), KNOWN.targets, KNOWN.head_weight, KNOWN.head_bias)
    for name in ("forensic_knn", "novelty", "trace_novelty", "mahalanobis"):
        fit = POST_HOC[name]
        assert fit(changed)(in_units(FRESH)) == pytest.approx(fit(KNOWN)(FRESH), rel=1e-3)


def test_mahalanobis_is_the_distance_under_scikit_learns_shrunk_covariance() -> None:
    raw, targets = KNOWN.evidence.features.astype(float), KNOWN.targets
    means = np.stack([raw[targets == c].mean(0) for c in range(2)])
    centred = raw - means[targets]
    scale = centred.std(0)
    precision = LedoitWolf(assume_centered=True).fit(centred / scale).get_precision() / np.outer(scale, scale)
    away = FRESH.features[:, None].astype(float) - means
    expected = np.einsum("ncf,fg,ncg->nc", away, precision, away).min(1)
    assert forensic.fit_mahalanobis(KNOWN)(FRESH) == pytest.approx(expected, rel=1e-3)


def test_mahalanobis_of_many_items_is_pytorch_oods_but_for_its_half_and_its_sum() -> None:
    many = known(count=20_000)
    oracle = Mahalanobis(encoder=None).fit_features(
        torch.tensor(many.evidence.features, dtype=torch.float32), torch.tensor(many.targets)
    )
    expected = 2 * 20_000 * oracle.predict_features(torch.tensor(FRESH.features)).numpy()
    assert forensic.fit_mahalanobis(many)(FRESH) == pytest.approx(expected, rel=0.02)


def gate_parts(evidence: Evidence) -> GateInputs:
    families = [KNOWN.names[target] for target in KNOWN.targets]
    reference = make_reference(KNOWN.evidence.output(), families, [f"{i:03d}" for i in range(40)])
    return gate_inputs(evidence.output(), reference)


@pytest.mark.parametrize("name", SCORES)
def test_a_score_of_the_gate_has_the_same_values_as_a_score_of_rejection(name: str) -> None:
    assert POST_HOC[name](KNOWN)(FRESH) == pytest.approx(gate_parts(FRESH).scores[name], rel=1e-5)


def test_the_fused_score_is_what_a_fitted_gate_gives() -> None:
    assert KNOWN.calibration is not None
    assert KNOWN.calibration_targets is not None
    families = NAMES[KNOWN.calibration_targets]
    apart = np.array([f"{i:03d}" for i in range(len(families))])
    gate = fit_gate(gate_parts(KNOWN.calibration), families, apart)
    assert forensic.fit_fused(KNOWN)(FRESH) == pytest.approx(
        unknown_scores(gate_parts(FRESH), gate), abs=1e-5
    )


def test_the_fused_score_is_the_sum_of_its_clipped_standards() -> None:
    assert KNOWN.calibration is not None
    weights, held, fresh = (
        balanced_weights(np.arange(30) % 2),
        gate_parts(KNOWN.calibration),
        gate_parts(FRESH),
    )

    expected = np.zeros(len(FRESH))
    for name, entry in SCORES.items():
        if entry.standard:
            expected += entry.weight * np.clip(fresh.scores[name], -6, 6)
            continue
        middle = weighted_quantile(held.scores[name], weights, 0.5)
        spread = weighted_quantile(held.scores[name], weights, 0.84) - middle
        expected += entry.weight * np.clip((fresh.scores[name] - middle) / spread, -6, 6)
    assert forensic.fit_fused(KNOWN)(FRESH) == pytest.approx(expected, abs=1e-4)


def test_without_calibration_items_nothing_can_be_fused() -> None:
    bare = FitSet(KNOWN.evidence, KNOWN.targets, KNOWN.head_weight, KNOWN.head_bias)
    with pytest.raises(EvidenceError, match="needs calibration items"):
        forensic.fit_fused(bare)


def test_without_forensic_features_no_score_that_reads_them_can_be_fitted_but_the_fused() -> None:
    blind = known(width=0)
    for name in ("forensic_knn", "novelty", "embedding_novelty", "trace_novelty", "mahalanobis"):
        with pytest.raises(EvidenceError, match="the network has none"):
            POST_HOC[name](blind)
    assert np.isfinite(forensic.fit_fused(blind)(items(2, 12, width=0))).all()


def test_too_few_items_make_no_reference() -> None:
    with pytest.raises(CalibrationError, match="8 training items are too few"):
        forensic.fit_forensic_knn(known(count=8))

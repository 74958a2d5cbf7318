"""The scores that read the logits: MSP, MaxLogit, energy, GEN, KL matching, pseudo."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_ood.detector import GEN, EnergyBased
from scipy.special import logsumexp, softmax
from scipy.stats import entropy

from updater.benchmark.rejection import logits as scores
from updater.benchmark.rejection.evidence import Evidence, Known
from updater.benchmark.rejection.methods import POST_HOC

ROWS = st.lists(st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3), min_size=1, max_size=6)


def evidence(logits: object, pseudo_logit: object = None) -> Evidence:
    rows = np.asarray(logits, np.float32)
    n = len(rows)
    pseudo_logit = np.zeros(n) if pseudo_logit is None else pseudo_logit
    return Evidence(rows, np.zeros((n, 2), "f"), np.zeros((n, 0), "f"), np.asarray(pseudo_logit, np.float32))


def known(logits: object) -> Known:
    found = evidence(logits)
    k = found.logits.shape[1]
    return Known(found, found.logits.argmax(1), np.zeros((k, 2), "f"), np.zeros(k, "f"))


ANY = known([[0, 0, 0]])


@given(ROWS)
def test_msp_is_scipys_largest_softmax_turned_round(rows: list[list[float]]) -> None:
    assert scores.fit_msp(ANY)(evidence(rows)) == pytest.approx(-softmax(rows, axis=1).max(1))


@given(ROWS, st.integers(-64, 64))
def test_a_constant_added_to_the_logits_leaves_msp_gen_and_kl_matching_alone(
    rows: list[list[float]], constant: int
) -> None:
    # Multiples of 1/8: so the sums are exact in float32.
    logits = np.round(np.array(rows) * 8) / 8
    typical = known([[3, 0, 0], [2, 1, 0], [0, 2, 1]])
    for fit in (scores.fit_msp, scores.fit_gen, scores.fit_klm):
        score = fit(typical)
        assert score(evidence(logits + constant)) == pytest.approx(score(evidence(logits)), abs=1e-9)


@given(ROWS, st.integers(-64, 64))
def test_a_constant_added_to_the_logits_lowers_energy_and_max_logit_by_it(
    rows: list[list[float]], constant: int
) -> None:
    logits = np.round(np.array(rows) * 8) / 8
    for name in ("energy", "max_logit"):
        score = POST_HOC[name](ANY)
        assert score(evidence(logits + constant)) == pytest.approx(score(evidence(logits)) - constant)


def test_energy_agrees_with_pytorch_ood_and_scipy_and_tells_confident_items_apart() -> None:
    rows = np.random.default_rng(0).normal(0, 3, (20, 3)).astype("f")
    found = POST_HOC["energy"](ANY)(evidence(rows))
    oracle = EnergyBased.score(torch.tensor(rows, dtype=torch.float64)).numpy()
    assert found == pytest.approx(oracle, rel=1e-12)
    assert found == pytest.approx(-logsumexp(rows.astype(float), axis=1), rel=1e-12)


def test_energy_of_a_confident_row_is_lower_than_of_a_flat_one() -> None:
    confident, flat = POST_HOC["energy"](ANY)(evidence([[9, 0, 0], [1, 1, 1]]))
    assert flat == pytest.approx(-(1 + math.log(3)))
    assert confident < flat


def test_max_logit_is_the_largest_logit_turned_round() -> None:
    assert scores.fit_max_logit(ANY)(evidence([[1, 4, 2], [-3, -2, -5]])).tolist() == [-4, 2]


def test_gen_of_four_equal_classes_is_worked_by_hand() -> None:
    score = scores.fit_gen(known([[0, 0, 0, 0]]))(evidence([[7, 7, 7, 7]]))
    assert score == pytest.approx([4 * (1 / 4 * 3 / 4) ** 0.1])


def test_gen_is_pytorch_oods_mean_times_the_number_of_terms_where_nothing_is_clamped() -> None:
    rows = np.random.default_rng(1).normal(0, 1, (20, 5))
    for largest, terms in ((100, 5), (2, 2)):
        found = scores.fit_gen(known(rows), largest=largest)(evidence(rows))
        oracle = GEN.score(torch.tensor(rows.astype("f")), gamma=0.1, M=terms).numpy()
        assert found == pytest.approx(terms * oracle, rel=1e-4)


def test_gen_orders_answers_so_confident_that_pytorch_ood_gives_them_one_score() -> None:
    rows = [[20, 0, 0], [30, 0, 0]]
    less, more = scores.fit_gen(ANY)(evidence(rows))
    assert less > 1.2 * more
    clamped = GEN.score(torch.tensor(rows, dtype=torch.float64))
    assert float(clamped[0]) == pytest.approx(float(clamped[1]))


def test_kl_matching_agrees_with_scipys_divergence_from_the_typical_posteriors() -> None:
    rng = np.random.default_rng(2)
    training, fresh = rng.normal(0, 2, (40, 3)), rng.normal(0, 2, (15, 3))
    training, fresh = training.astype("f").astype(float), fresh.astype("f").astype(float)
    p = softmax(training, axis=1)
    typical = [p[p.argmax(1) == k].mean(0) for k in range(3)]
    expected = [min(entropy(row, d) for d in typical) for row in softmax(fresh, axis=1)]
    assert scores.fit_klm(known(training))(evidence(fresh)) == pytest.approx(expected)


def test_a_class_that_is_never_named_has_no_typical_posterior() -> None:
    score = scores.fit_klm(known([[4, 0, 0], [0, 4, 0]]))
    of_first, of_third = score(evidence([[4, 0, 0], [0, 0, 4]]))
    assert of_first == pytest.approx(0, abs=1e-12)
    assert of_third > 3


def test_kl_matching_stays_finite_where_a_posterior_underflows() -> None:
    score = scores.fit_klm(known([[2000, 0, 0], [0, 2000, 0]]))
    assert score(evidence([[2000, 0, 0]])) == pytest.approx([0])
    assert score(evidence([[0, 0, 2000]])) > 1e300


def test_the_pseudo_score_is_the_log_odds_of_the_extra_class() -> None:
    rows, extra = np.array([[1.0, 2, 3], [4, 0, 0]]), np.array([5.0, -1])
    posterior = softmax(np.column_stack([rows, extra]), axis=1)
    expected = np.log(posterior[:, 3] / posterior[:, :3].sum(1))
    assert POST_HOC["pseudo"](ANY)(evidence(rows, extra)) == pytest.approx(expected)

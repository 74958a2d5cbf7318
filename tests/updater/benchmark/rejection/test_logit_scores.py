"""The scores that read the logits, MSP, MaxLogit, energy, GEN, KL matching, pseudo; and ODIN's step."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_ood.detector import GEN
from scipy.special import logsumexp, softmax
from torch import nn

from detector.model.network import Network
from detector.model.scores import NetworkOutput
from detector.release.manifest import Architecture
from updater.benchmark.rejection import logits as logits_of
from updater.benchmark.rejection.evidence import Evidence, FitSet, evidence_of, known_of
from updater.benchmark.rejection.logits import fit_odin, odin_scores
from updater.benchmark.rejection.methods import POST_HOC
from updater.data.training_data import LabelledCrops

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


def test_energy_agrees_with_scipy_and_tells_confident_items_apart():
    rows = np.random.default_rng(0).normal(0, 3, (20, 3)).astype("f")
    found = POST_HOC["energy"](ANY)(evidence(rows))
    assert found == pytest.approx(-logsumexp(rows.astype(float), axis=1), rel=1e-12)


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


def test_a_class_that_is_never_named_has_no_typical_posterior():
    of_first, of_third = logits_of.fit_klm(known([[4, 0, 0], [0, 4, 0]]))(evidence([[4, 0, 0], [0, 0, 4]]))
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
    means = [items.crops[a:b].mean((1, 2, 3)).mean() for a, b in pairwise(items.starts)]
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
    (gradient,) = torch.autograd.grad(-(network(images, pooling).logits / 1000).log_softmax(1).max(), images)
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


def test_no_item_gives_no_score(network):
    assert odin_scores(network, labelled([]).take([])).shape == (0,)


def test_the_networks_own_gradients_stay_empty(network):
    odin_scores(network, labelled([1]))
    assert all(parameter.grad is None for parameter in network.parameters())

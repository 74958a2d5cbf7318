"""OpenCIL's loss of energies, and BER's outliers."""

from math import exp, log

import numpy as np
import pytest
import torch

from updater.benchmark.rejection import energy_margins, npos, vos
from updater.benchmark.rejection.energy_margins import Margins, energy_loss
from updater.benchmark.rejection.evidence import Evidence, Known
from updater.benchmark.rejection.fine_tuned_head import FineTuning


def row(*energies):
    """One logit an item: E = -logit."""
    return -torch.tensor([energies]).T


def test_the_energies_by_hand():
    value = energy_loss(row(-3.0, -10.0), row(-2.0), row(-1.0, 4.0), Margins(-5.0, 1.0))
    assert value.item() == pytest.approx((2**2 + 0) / 2 + 3**2 + (2**2 + 0) / 2)


def test_no_exemplars_and_no_outliers_count_nothing():
    empty = torch.zeros(0, 2)
    assert energy_loss(empty, empty, empty, Margins(0, 0)).item() == 0


def test_the_energies_reach_every_logit_of_all_three_parts():
    parts = [torch.tensor([[1.0, -0.5, 2.0]], requires_grad=True) for _ in range(3)]
    torch.autograd.backward(energy_loss(*parts, Margins(-9.0, 5.0)))
    assert all((one.grad != 0).all() for one in parts)


def test_the_whole_loss_by_hand(monkeypatch):
    losses = []
    monkeypatch.setattr(
        energy_margins,
        "fine_tune",
        lambda head, loss, plan, seed: losses.append(loss(torch.Generator())),
    )
    x, r, u = (1.0, 0.0), (0.0, 2.0), (0.5, 0.5)
    rows = np.array([x, r], "f")
    items = Evidence(rows, rows, np.zeros((2, 0), "f"), np.zeros(2, "f"))
    # The head is the identity, so that an embedding is its logits.
    known = Known(items, np.array([0, 1]), np.eye(2, dtype="f"), np.zeros(2, "f"))
    energy_margins.fit(
        known,
        np.array([False, True]),
        0,
        FineTuning(batch=1),
        Margins(-2.0, 0.0),
        lambda _: torch.tensor([u]),
    )
    o = (0.002 * 1.0, 0.998 * 2.0)
    sums = [log(exp(one[0]) + exp(one[1])) for one in (x, o, u)]
    classified = (sums[0] - x[0]) + (sums[1] - o[1])
    # Only what is beyond its margin counts: E(o) is below -2.
    assert -sums[1] < -2 < -sums[0]
    expected = classified + 0.1 * ((-sums[0] + 2) ** 2 + 0 + (0 + sums[2]) ** 2)
    assert losses[0].item() == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def seen(monkeypatch):
    """Whatever a head is trained on is told, and not trained on: (margins, a draw of outliers)."""
    calls = []

    def spy(known, old, seed, plan, margins, outliers):
        calls.append((margins, [outliers(torch.Generator().manual_seed(n)) for n in range(8)]))

    monkeypatch.setattr(energy_margins, "fit", spy)
    return calls


@pytest.mark.parametrize("fit", [energy_margins.fit_ber_published, vos.fit_published, npos.fit_published])
def test_the_published_margins_are_minus_27_and_minus_5(fit, seen, space, old):
    fit(space.known(), old, 0)
    assert seen[0][0] == Margins(-27.0, -5.0)


@pytest.mark.parametrize("fit", [energy_margins.fit_ber, vos.fit, npos.fit])
def test_ours_takes_its_margins_from_the_items_energies(fit, seen, space, old):
    fit(space.known(), old, 0)
    energies = -torch.logsumexp(torch.tensor(space.known().evidence.logits), 1).numpy()
    assert seen[0][0].inside == pytest.approx(np.sort(energies)[len(old) // 2 - 1], rel=1e-5)
    assert seen[0][0].outside == pytest.approx(np.quantile(energies, 0.95) + 1, rel=1e-5)


def test_ber_mixes_every_pair_as_published_and_in_ours_different_classes_only(seen, space, old):
    for fit in (energy_margins.fit_ber_published, energy_margins.fit_ber):
        fit(space.known(), old, 0, FineTuning(batch=90))
    published, ours = ([len(one) for one in draws] for _, draws in seen)
    assert set(published) == {90}
    # Three classes are new: a third of the pairs are of one class.
    assert 50 < np.mean(ours) < 70


def test_bers_outliers_lie_between_two_new_items(seen, space, old):
    energy_margins.fit_ber(space.known(), old, 0, FineTuning(batch=8))
    embedding = torch.tensor(space.known().evidence.embedding)
    new = embedding[torch.from_numpy(~old)]
    apart = torch.cdist(new, new)
    for found in seen[0][1][0]:
        # On the segment between two of them, the distances to both add up to theirs.
        both = torch.cdist(found[None], new)[0]
        detour = both[:, None] + both[None] - apart
        detour.fill_diagonal_(1.0)
        assert detour.min() < 1e-4

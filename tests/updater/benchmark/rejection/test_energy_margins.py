"""OpenCIL's loss of energies, and the outliers that are made for it: BER's, NPOS's and VOS's."""

from math import exp, log

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import ks_2samp
from sklearn.neighbors import NearestNeighbors

from updater.benchmark.rejection import energy_margins
from updater.benchmark.rejection.energy_margins import Margins, energy_loss, fit_ber
from updater.benchmark.rejection.evidence import Evidence, FitSet
from updater.benchmark.rejection.heads import PLAN, FineTuning
from updater.benchmark.rejection.virtual_outliers import (
    fit_npos,
    fit_vos,
    gaussians,
    kept_as_published,
    rim,
    virtual_outliers,
)
from updater.benchmark.rejection.virtual_outliers import reach as reach_of


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
    assert all((part.grad != 0).all() for part in parts)


def test_the_whole_loss_by_hand(monkeypatch):
    losses = []
    monkeypatch.setattr(
        energy_margins, "fine_tune", lambda head, loss, plan, seed: losses.append(loss(torch.Generator()))
    )
    x, r, u = (1.0, 0.0), (0.0, 2.0), (0.5, 0.5)
    rows = np.array([x, r], "f")
    items = Evidence(rows, rows, np.zeros((2, 0), "f"), np.zeros(2, "f"))
    # The head is the identity, so that an embedding is its logits.
    known = FitSet(items, np.array([0, 1]), np.eye(2, dtype="f"), np.zeros(2, "f"))
    monkeypatch.setattr(energy_margins, "PUBLISHED", Margins(-2.0, 0.0))
    old, plan = np.array([False, True]), FineTuning(batch=1)
    energy_margins.fit(known, old, 0, plan, lambda _: torch.tensor([u]), published=True)
    o = (0.002 * 1.0, 0.998 * 2.0)
    sums = [log(exp(one[0]) + exp(one[1])) for one in (x, o, u)]
    classified = (sums[0] - x[0]) + (sums[1] - o[1])
    # Only what is beyond its margin counts: E(o) is below -2.
    assert -sums[1] < -2 < -sums[0]
    expected = classified + 0.1 * ((-sums[0] + 2) ** 2 + 0 + (0 + sums[2]) ** 2)
    assert losses[0].item() == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def margins(monkeypatch):
    """The margins of each step of a head's training."""
    told = []
    spy = lambda new, old, beyond, margins: told.append(margins) or new.sum() * 0  # noqa: E731
    monkeypatch.setattr(energy_margins, "energy_loss", spy)
    return told


@pytest.fixture
def drawn(monkeypatch):
    """Eight draws of the outliers that a head would be trained on."""

    def drawn(fit, known, old, plan=PLAN, **how):
        found = []

        def spy(known, old, seed, plan, outliers, *, published):
            found.extend(outliers(torch.Generator().manual_seed(n)) for n in range(8))

        monkeypatch.setattr(energy_margins, "fit", spy)
        fit(known, old, 0, plan, **how)
        return found

    return drawn


every_fit = pytest.mark.parametrize("fit", [fit_ber, fit_vos, fit_npos])


@every_fit
def test_the_published_margins_are_minus_27_and_minus_5(fit, margins, space, old):
    fit(space.known(), old, 0, FineTuning(steps=1), published=True)
    assert margins == [Margins(-27.0, -5.0)]


@every_fit
def test_ours_takes_its_margins_from_the_items_energies(fit, margins, space, old):
    fit(space.known(), old, 0, FineTuning(steps=1))
    energies = -torch.logsumexp(torch.tensor(space.known().evidence.logits), 1).numpy()
    assert margins[0].inside == pytest.approx(np.sort(energies)[len(old) // 2 - 1], rel=1e-5)
    assert margins[0].outside == pytest.approx(np.quantile(energies, 0.95) + 1, rel=1e-5)


def test_ber_mixes_every_pair_as_published_and_in_ours_different_classes_only(drawn, space, old):
    published, ours = (
        [len(draw) for draw in drawn(fit_ber, space.known(), old, FineTuning(batch=90), published=how)]
        for how in (True, False)
    )
    assert set(published) == {90}
    # Three classes are new: a third of the pairs are of one class.
    assert 50 < np.mean(ours) < 70


def test_bers_outliers_lie_between_two_new_items(drawn, space, old):
    new = torch.tensor(space.known().evidence.embedding)[torch.from_numpy(~old)]
    apart = torch.cdist(new, new)
    for found in drawn(fit_ber, space.known(), old, FineTuning(batch=8))[0]:
        # On the segment between two of them, the distances to both add up to theirs.
        both = torch.cdist(found[None], new)[0]
        detour = both[:, None] + both[None] - apart
        detour.fill_diagonal_(1.0)
        assert detour.min() < 1e-4


@pytest.fixture
def items(space):
    """Of one class, float32 [30, WIDTH]."""
    return torch.tensor(space.around(space.means[:1], 30, 5).embedding)


def unit(rows):
    return F.normalize(rows, dim=1).numpy()


def reach(rows, items, neighbours):
    return NearestNeighbors(n_neighbors=neighbours).fit(unit(items)).kneighbors(unit(rows))[0][:, -1]


def test_the_rim_is_where_scikit_learns_neighbours_are_farthest(items):
    # 40 % of 30 is the twelfth neighbour, 20 % are six items.
    assert set(rim(items).tolist()) == set(np.argsort(-reach(items, items, 12))[:6].tolist())


def test_only_directions_count_for_the_reach(items):
    assert torch.allclose(reach_of(7 * items, items), reach_of(items, items), atol=1e-4)


def test_the_published_table_keeps_these_candidates():
    far = torch.tensor([[10.0, 1, 8, 3], [5, 6, 7, 2]])
    # Read as four rows of two it is (10, 1), (8, 3), (5, 6), (7, 2).
    assert kept_as_published(far, 1).tolist() == [[0], [2]]
    assert kept_as_published(far, 2).tolist() == [[0, 1], [2, 1]]


def test_ours_are_the_farthest_candidates_of_two_rim_items_of_each_new_class(drawn, space, old):
    width = space.means.shape[1]
    found = drawn(fit_npos, space.known(), old)[1]
    assert found.shape == (3 * 2 * 300, width)
    noise = torch.randn(1000, width, generator=torch.Generator().manual_seed(1))
    known = space.known()
    for number, of_class in enumerate(found.split(600), 3):
        members = torch.tensor(known.evidence.embedding[known.targets == number])
        for of_item in of_class.split(300):
            # All candidates share their noise, so that any outlier leads back to its rim item.
            item = int(((of_item[0] - 0.1 * noise)[:, None] - members[None]).norm(dim=2).amin(0).argmin())
            assert item in rim(members).tolist()
            farthest = np.sort(reach(members[item] + 0.1 * noise, members, 10))[-300:]
            assert np.sort(reach(of_item, members, 10)) == pytest.approx(farthest, rel=1e-3)


def test_as_published_nearly_any_candidates_are_kept(drawn, space, old):
    members = torch.tensor(space.known().evidence.embedding[space.known().targets == 3])
    ours, published = (
        reach(drawn(fit_npos, space.known(), old, published=how)[1][:600], members, 10).mean()
        for how in (False, True)
    )
    assert published < ours


def test_a_class_of_one_item_has_a_rim_and_outliers(drawn, space, old):
    for published in (False, True):
        found = drawn(fit_npos, space.known(1), old[::24], published=published)
        assert [len(outliers) for outliers in found] == [3 * 300] * 8


def test_the_gaussians_are_the_classes_means_and_their_common_covariance(space):
    items = space.known()
    rows, target = torch.tensor(items.evidence.embedding), torch.tensor(items.targets)
    means, factor = gaussians(rows, target)
    classes = [np.cov(rows[target == c].numpy().T, bias=True) for c in range(len(space.means))]
    width = rows.shape[1]
    assert np.allclose(means[1], rows[target == 1].mean(0), atol=1e-5)
    assert np.allclose(factor @ factor.T, np.mean(classes, 0) + 1e-4 * np.eye(width), atol=1e-4)


def test_an_outlier_is_as_long_as_the_longest_of_so_many_draws(space):
    width, draws, samples = space.means.shape[1], 300, 1000
    found = virtual_outliers(
        torch.Generator().manual_seed(0), torch.zeros(draws, width), torch.eye(width), samples
    )
    generator = torch.Generator().manual_seed(1)
    longest = [torch.randn(samples, width, generator=generator).norm(dim=1).max() for _ in range(draws)]
    assert ks_2samp(found.norm(dim=1).numpy(), np.array(longest)).pvalue > 0.05
    fewer = virtual_outliers(
        torch.Generator().manual_seed(0), torch.zeros(draws, width), torch.eye(width), samples // 2
    )
    assert ks_2samp(fewer.norm(dim=1).numpy(), np.array(longest)).pvalue < 0.001


def test_outliers_scatter_about_their_mean_as_their_class_does():
    factor = torch.tensor([[2.0, 0, 0], [1, 1, 0], [0, -1, 0.5]])
    means = torch.tensor([[10.0, 0, -5]]).repeat(20_000, 1)
    found = virtual_outliers(torch.Generator().manual_seed(0), means, factor)
    covariance = np.cov(found.T.numpy())
    assert np.allclose(found.mean(0), means[0], atol=0.2)
    wanted = factor @ factor.T / (factor**2).sum().item()
    assert np.allclose(covariance / np.trace(covariance), wanted, atol=0.01)


@pytest.mark.parametrize(("fit", "of_each"), [(fit_vos, 1), (fit_npos, 600)])
def test_opencils_outliers_are_of_the_new_classes_only(fit, of_each, drawn, space, old):
    found = drawn(fit, space.known(), old, published=True)[0]
    nearest = torch.cdist(found, torch.tensor(space.means, dtype=torch.float32)).argmin(1)
    assert nearest.tolist() == [3] * of_each + [4] * of_each + [5] * of_each

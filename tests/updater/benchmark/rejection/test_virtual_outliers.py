"""NPOS's outliers beyond the rim of each class, and VOS's at the rim of its Gaussian."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import ks_2samp
from sklearn.neighbors import NearestNeighbors

from updater.benchmark.rejection import energy_margins, npos, vos


@pytest.fixture
def items(space):
    """Of one class, float32 [30, WIDTH]."""
    return torch.tensor(space.around(space.means[:1], 30, 5).embedding)


def unit(rows):
    return F.normalize(rows, dim=1).numpy()


def reach(rows, items, neighbours):
    search = NearestNeighbors(n_neighbors=neighbours).fit(unit(items))
    return search.kneighbors(unit(rows))[0][:, -1]


def test_the_rim_is_where_scikit_learns_neighbours_are_farthest(items):
    # 40 % of 30 is the twelfth neighbour, 20 % are six items.
    assert set(npos.rim(items).tolist()) == set(np.argsort(-reach(items, items, 12))[:6].tolist())


def test_only_directions_count_for_the_reach(items):
    assert torch.allclose(npos.reach(7 * items, items), npos.reach(items, items), atol=1e-4)


def test_the_published_table_keeps_these_candidates():
    far = torch.tensor([[10.0, 1, 8, 3], [5, 6, 7, 2]])
    # Read as four rows of two it is (10, 1), (8, 3), (5, 6), (7, 2).
    assert npos.kept_as_published(far, 1).tolist() == [[0], [2]]
    assert npos.kept_as_published(far, 2).tolist() == [[0, 1], [2, 1]]


def outliers_of(fit, monkeypatch, space, old, generator):
    seen = []
    monkeypatch.setattr(energy_margins, "fit", lambda *args: seen.append(args[-1](generator)))
    fit(space.known(), old, 0)
    return seen[0]


def test_ours_are_the_farthest_candidates_of_two_rim_items_of_each_new_class(monkeypatch, space, old):
    width = space.means.shape[1]
    found = outliers_of(npos.fit, monkeypatch, space, old, torch.Generator().manual_seed(1))
    assert found.shape == (3 * 2 * 300, width)
    noise = torch.randn(1000, width, generator=torch.Generator().manual_seed(1))
    known = space.known()
    for number, of_class in enumerate(found.split(600), 3):
        members = torch.tensor(known.evidence.embedding[known.targets == number])
        for of_item in of_class.split(300):
            # All candidates share their noise, so that any outlier leads back to its rim item.
            apart = (of_item[0] - 0.1 * noise)[:, None] - members[None]
            item = int(apart.norm(dim=2).amin(0).argmin())
            assert item in npos.rim(members).tolist()
            candidates = members[item] + 0.1 * noise
            farthest = np.sort(reach(candidates, members, 10))[-300:]
            assert np.sort(reach(of_item, members, 10)) == pytest.approx(farthest, rel=1e-3)


def test_as_published_nearly_any_candidates_are_kept(monkeypatch, space, old):
    members = torch.tensor(space.known().evidence.embedding[space.known().targets == 3])
    reaches = [
        reach(
            outliers_of(fit, monkeypatch, space, old, torch.Generator().manual_seed(1))[:600], members, 10
        ).mean()
        for fit in (npos.fit, npos.fit_published)
    ]
    assert reaches[1] < reaches[0]


def test_a_class_of_one_item_has_a_rim_and_outliers(monkeypatch, space, old):
    few = space.known(1)
    seen = []
    monkeypatch.setattr(
        energy_margins, "fit", lambda *args: seen.append(args[-1](torch.Generator().manual_seed(0)))
    )
    for fit in (npos.fit, npos.fit_published):
        fit(few, old[::24], 0)
    assert [len(one) for one in seen] == [3 * 300] * 2


def test_the_gaussians_are_the_classes_means_and_their_common_covariance(space):
    items = space.known()
    rows, target = torch.tensor(items.evidence.embedding), torch.tensor(items.targets)
    means, factor = vos.gaussians(rows, target)
    classes = [np.cov(rows[target == c].numpy().T, bias=True) for c in range(len(space.means))]
    width = rows.shape[1]
    assert np.allclose(means[1], rows[target == 1].mean(0), atol=1e-5)
    assert np.allclose(factor @ factor.T, np.mean(classes, 0) + 1e-4 * np.eye(width), atol=1e-4)


def test_an_outlier_is_as_long_as_the_longest_of_so_many_draws(space):
    width, draws, samples = space.means.shape[1], 300, 1000
    found = vos.virtual_outliers(
        torch.Generator().manual_seed(0), torch.zeros(draws, width), torch.eye(width), samples
    )
    generator = torch.Generator().manual_seed(1)
    longest = [torch.randn(samples, width, generator=generator).norm(dim=1).max() for _ in range(draws)]
    assert ks_2samp(found.norm(dim=1).numpy(), np.array(longest)).pvalue > 0.05
    fewer = vos.virtual_outliers(
        torch.Generator().manual_seed(0), torch.zeros(draws, width), torch.eye(width), samples // 2
    )
    assert ks_2samp(fewer.norm(dim=1).numpy(), np.array(longest)).pvalue < 0.001


def test_outliers_scatter_about_their_mean_as_their_class_does():
    factor = torch.tensor([[2.0, 0, 0], [1, 1, 0], [0, -1, 0.5]])
    means = torch.tensor([[10.0, 0, -5]]).repeat(20_000, 1)
    found = vos.virtual_outliers(torch.Generator().manual_seed(0), means, factor)
    covariance = np.cov(found.T.numpy())
    assert np.allclose(found.mean(0), means[0], atol=0.2)
    assert np.allclose(
        covariance / np.trace(covariance), factor @ factor.T / (factor**2).sum().item(), atol=0.01
    )


def test_opencils_outliers_are_of_the_new_classes_only(monkeypatch, space, old):
    seen = []
    monkeypatch.setattr(
        energy_margins, "fit", lambda *args: seen.append(args[-1](torch.Generator().manual_seed(0)))
    )
    vos.fit_published(space.known(), old, 0)
    nearest = torch.cdist(seen[0], torch.tensor(space.means, dtype=torch.float32)).argmin(1)
    assert nearest.tolist() == [3, 4, 5]

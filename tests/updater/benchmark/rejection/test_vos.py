"""VOS: the virtual outliers, OpenCIL's use of them, and the paper's own loss."""

import numpy as np
import torch
from scipy.stats import ks_2samp

from updater.benchmark.rejection import energy_margins, vos


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

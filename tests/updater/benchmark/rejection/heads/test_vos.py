"""VOS: the virtual outliers, OpenCIL's use of them, and the paper's own loss."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pytorch_ood.loss import VOSRegLoss
from scipy.stats import ks_2samp

from updater.benchmark.rejection.heads import energy_margins, vos, vos_logistic


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


# The paper's own loss


def test_the_weighted_energy_by_hand():
    logits, weights = torch.log(torch.tensor([[2.0, 3.0, 5.0]])), torch.tensor([1.0, 2.0, -4.0])
    assert vos_logistic.weighted_energy(logits, weights).item() == pytest.approx(-math.log(2 + 6), rel=1e-5)
    alike = vos_logistic.weighted_energy(logits, torch.ones(3))
    assert alike.item() == pytest.approx(-torch.logsumexp(logits, 1).item(), rel=1e-5)


def test_of_as_many_items_as_outliers_pytorch_oods_loss_is_half_of_ours():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(8, 3, generator=generator)
    weights, slope = torch.tensor([0.5, 1.0, 2.0]), 1.7
    layer, energy = torch.nn.Linear(1, 2), torch.nn.Linear(3, 1)
    with torch.no_grad():
        # Its class 1 is the familiar one, so that phi is logit 0 less logit 1.
        layer.weight.copy_(torch.tensor([[slope], [0.0]]))
        layer.bias.copy_(torch.tensor([0.3, 0.0]))
        energy.weight.copy_(weights[None])
        target = torch.tensor([0, 1, 2, 0, -1, -1, -1, -1])
        theirs = VOSRegLoss(layer, energy, alpha=1.0)(logits, target) - F.cross_entropy(
            logits[:4], target[:4]
        )
    phi = slope * vos_logistic.weighted_energy(logits, weights) + 0.3
    ours = vos_logistic.uncertainty_loss(phi[:4], phi[4:])
    assert theirs.item() == pytest.approx(ours.item() / 2, rel=1e-4)


def test_the_loss_reaches_every_logit_weight_and_side():
    logits = torch.tensor([[1.0, -1, 0.5], [0.2, 0.1, 3]], requires_grad=True)
    weights = torch.ones(3, requires_grad=True)
    phi = vos_logistic.weighted_energy(logits, weights)
    torch.autograd.backward(vos_logistic.uncertainty_loss(phi[:1], phi[1:]))
    assert (logits.grad != 0).all()
    assert (weights.grad != 0).all()

from dataclasses import replace

import pytest
import torch

from detector.release.manifest import Architecture
from updater.benchmark.learners import wa
from updater.training.step import FIRST, Options, Step

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)


def test_the_factor_is_the_ratio_of_mean_norms():
    weight = torch.tensor([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0], [0.0, 2.0]])
    moved, bias = wa.aligned(weight, torch.tensor([1.0, 2.0, 3.0, 4.0]), 2)
    # Old norms 5 and 1, new ones 10 and 2: the factor is 3 / 6.
    assert torch.allclose(moved, torch.tensor([[3.0, 4.0], [0.0, 1.0], [3.0, 4.0], [0.0, 1.0]]))
    assert torch.allclose(bias, torch.tensor([1.0, 2.0, 1.5, 2.0]))


@pytest.mark.parametrize("old", [0, 3])
def test_without_old_or_without_new_classes_nothing_changes(old):
    weight, bias = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), torch.ones(3)
    assert all(torch.equal(a, b) for a, b in zip(wa.aligned(weight, bias, old), (weight, bias), strict=True))


def test_an_update_leaves_equal_mean_norms(labelled):
    recipe = replace(FIRST, backbone_steps=1, balanced_steps=5, batch=8)
    options = Options(exposure="none")
    items = labelled({"real": 4, "blocky": 4})
    first = Step(items, ("real", "blocky"), TINY, options=options, recipe=recipe)
    items = labelled({"real": 2, "blocky": 2, "striped": 4, "posterised": 4}, seed=1)
    classes = ("real", "blocky", "striped", "posterised")
    learnt = wa.learn(replace(first, train=items, classes=classes, previous=wa.learn(first)))
    norms = learnt.network.head.weight.norm(dim=1)
    assert norms[:2].mean().item() == pytest.approx(norms[2:].mean().item(), rel=1e-5)


def test_a_cosine_head_is_refused(labelled):
    cosine = TINY.model_copy(update={"head": "cosine"})
    with pytest.raises(ValueError, match="linear head"):
        wa.learn(Step(labelled({"real": 2, "blocky": 2}), ("real", "blocky"), cosine))

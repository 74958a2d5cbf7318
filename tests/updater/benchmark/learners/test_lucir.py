import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from detector.model.network import CosineHead
from detector.release.manifest import Architecture
from updater.benchmark.learners import lucir
from updater.training.step import FIRST, Options, Step

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)
RECIPE = replace(FIRST, backbone_steps=2, balanced_steps=4, batch=8)


def test_the_more_old_classes_the_more_it_weighs():
    assert lucir.adaptive_weight(5, 2, 4) == pytest.approx(5)
    assert lucir.adaptive_weight(5, 8, 10) == pytest.approx(10)
    assert lucir.adaptive_weight(5, 9, 9) == pytest.approx(15)


def test_less_forget_is_one_less_the_cosine():
    now = torch.tensor([[3.0, 4.0], [0.0, 2.0]], requires_grad=True)
    before = torch.tensor([[4.0, 3.0], [0.0, 0.5]])
    value = lucir.less_forget(now, before)
    assert value.item() == pytest.approx((1 - 24 / 25) / 2, rel=1e-4)
    torch.autograd.backward(value)
    assert (now.grad[0] != 0).all()
    assert now.grad[1].abs().max() < 1e-6, "a longer embedding of the same direction is no forgetting"


def test_an_exemplar_is_held_a_margin_above_the_two_hardest_new_classes():
    scores = torch.tensor([[0.9, 0.1, 0.7, 0.2, 0.6], [0.1, 0.2, 0.3, 0.9, 0.4]], requires_grad=True)
    value = lucir.margin_ranking(scores, torch.tensor([0, 4]), old=2, margin=0.5)
    # Only the first is of an old class; of its rivals 0.7 and 0.6 are the hardest.
    assert value.item() == pytest.approx(((0.5 - 0.9 + 0.7) + (0.5 - 0.9 + 0.6)) / 2, rel=1e-4)
    torch.autograd.backward(value)
    assert scores.grad.tolist() == [[-1, 0, 0.5, 0, 0.5], [0, 0, 0, 0, 0]]


def test_ranking_is_the_mean_over_exemplars_and_nothing_without_them():
    scores = torch.tensor([[0.5, 0.6], [0.5, 1.0]])
    assert lucir.margin_ranking(scores, torch.tensor([0, 0]), 1, 0.2).item() == pytest.approx(0.5)
    assert lucir.margin_ranking(scores, torch.tensor([1, 1]), 1, 0.2).item() == 0


@pytest.mark.parametrize("head", [nn.Linear(4, 3), CosineHead(4, 3)])
def test_fixed_weights_neither_move_nor_decay(head):
    before = {name: value.clone() for name, value in head.state_dict().items()}
    lucir.fix_old(head, 2)
    optimiser = torch.optim.AdamW(head.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        optimiser.zero_grad()
        torch.autograd.backward(head(torch.ones(1, 4)).square().sum())
        optimiser.step()
    lucir.release(head)
    after = head.state_dict()
    assert after.keys() == before.keys()
    assert torch.equal(after["weight"][:2], before["weight"][:2])
    assert not torch.equal(after["weight"][2], before["weight"][2])
    if "bias" in after:
        assert torch.equal(after["bias"][:2], before["bias"][:2])


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_an_update_keeps_the_weights_of_old_classes(head, labelled):
    architecture = TINY.model_copy(update={"head": head})
    options = Options(exposure="none")
    first = Step(
        labelled({"real": 4, "blocky": 4}), ("real", "blocky"), architecture, options=options, recipe=RECIPE
    )
    learnt = lucir.learn(first)
    items = labelled({"real": 2, "blocky": 2, "striped": 4}, seed=1)
    after = lucir.learn(replace(first, train=items, classes=("real", "blocky", "striped"), previous=learnt))
    assert after.network.architecture == architecture
    old, new = learnt.network.head.weight, after.network.head.weight
    assert torch.equal(old, new[:2])
    assert not any("parametrizations" in name for name in after.network.state_dict())
    assert math.isfinite(new.sum().item())

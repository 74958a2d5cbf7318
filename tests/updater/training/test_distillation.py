import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from updater.training import distillation
from updater.training.step import Options


def test_soft_cross_entropy_is_the_divergence_and_the_teachers_entropy():
    logits, teacher = torch.tensor([[0.0, 1.0, -1.0]]), torch.tensor([[2.0, 0.0, 1.0]])
    q = torch.softmax(teacher / 2, 1)[0]
    entropy = -(q * q.log()).sum().item()
    divergence = distillation.soft_cross_entropy(logits, teacher, divergence=True).item()
    assert distillation.soft_cross_entropy(logits, teacher).item() == pytest.approx(divergence + entropy)
    by_hand = -sum(q[i].item() * torch.log_softmax(logits / 2, 1)[0, i].item() for i in range(3))
    assert distillation.soft_cross_entropy(logits, teacher).item() == pytest.approx(by_hand, rel=1e-5)


def test_soft_cross_entropy_moves_every_old_logit():
    logits = torch.zeros(2, 3, requires_grad=True)
    torch.autograd.backward(distillation.soft_cross_entropy(logits, torch.tensor([[3.0, 1, 0], [0, 2, 5.0]])))
    assert (logits.grad != 0).all()


@pytest.mark.parametrize(("weight", "share"), [(1.0, 2 / 3), (0.5, 1 / 3), (9.0, 1.0)])
def test_keeping_weighs_as_old_classes_among_all(weight, share, monkeypatch):
    wanted = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    monkeypatch.setattr(distillation, "teacher_logits", lambda step, data: wanted)
    step = SimpleNamespace(
        options=replace(Options(), distillation=weight), old=("a", "b"), classes=("a", "b", "c")
    )
    logits = torch.tensor([[0.0, 1.0, 5.0]])
    batch = SimpleNamespace(output=SimpleNamespace(logits=logits), items=torch.tensor([1]))
    kept = distillation.soft_cross_entropy(logits[:, :2], wanted[1:]).item()
    value = distillation.interpolated(lambda batch: torch.tensor(7.0), step, None)(batch).item()
    assert value == pytest.approx((1 - share) * 7 + share * kept, rel=1e-5)
    assert math.isfinite(value)


def test_the_first_step_has_nothing_to_keep():
    step = SimpleNamespace(options=Options(), old=(), classes=("a",))
    loss = distillation.interpolated(lambda batch: torch.tensor(7.0), step, None)
    assert loss(None).item() == 7

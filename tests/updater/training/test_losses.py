import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from updater.benchmark.learners import teacher
from updater.training import losses
from updater.training.step import Options


def test_soft_cross_entropy_is_the_divergence_and_the_teachers_entropy():
    logits, teacher = torch.tensor([[0.0, 1.0, -1.0]]), torch.tensor([[2.0, 0.0, 1.0]])
    q = torch.softmax(teacher / 2, 1)[0]
    entropy = -(q * q.log()).sum().item()
    divergence = losses.soft_cross_entropy(logits, teacher, divergence=True).item()
    assert losses.soft_cross_entropy(logits, teacher).item() == pytest.approx(divergence + entropy)
    by_hand = -sum(q[i].item() * torch.log_softmax(logits / 2, 1)[0, i].item() for i in range(3))
    assert losses.soft_cross_entropy(logits, teacher).item() == pytest.approx(by_hand, rel=1e-5)


def test_soft_cross_entropy_moves_every_old_logit():
    logits = torch.zeros(2, 3, requires_grad=True)
    torch.autograd.backward(losses.soft_cross_entropy(logits, torch.tensor([[3.0, 1, 0], [0, 2, 5.0]])))
    assert (logits.grad != 0).all()


@pytest.mark.parametrize(("weight", "share"), [(1.0, 2 / 3), (0.5, 1 / 3), (9.0, 1.0)])
def test_keeping_weighs_as_old_classes_among_all(weight, share, monkeypatch):
    wanted = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    monkeypatch.setattr(teacher, "teacher_logits", lambda step, data: wanted)
    step = SimpleNamespace(
        options=replace(Options(), distillation=weight), old=("a", "b"), classes=("a", "b", "c")
    )
    logits = torch.tensor([[0.0, 1.0, 5.0]])
    batch = SimpleNamespace(output=SimpleNamespace(logits=logits), items=torch.tensor([1]))
    kept = losses.soft_cross_entropy(logits[:, :2], wanted[1:]).item()
    value = teacher.interpolated(lambda batch: torch.tensor(7.0), step, None)(batch).item()
    assert value == pytest.approx((1 - share) * 7 + share * kept, rel=1e-5)
    assert math.isfinite(value)


def test_the_first_step_has_nothing_to_keep():
    step = SimpleNamespace(options=Options(), old=(), classes=("a",))
    loss = teacher.interpolated(lambda batch: torch.tensor(7.0), step, None)
    assert loss(None).item() == 7


@pytest.mark.parametrize("name", ["all", "exemplars"])
def test_what_is_distilled_is_every_item_or_those_of_old_classes_alone(name):
    step = SimpleNamespace(
        options=Options(distilled=name),
        old=("a/real", "a/fake"),
        train=SimpleNamespace(families=("b/fake", "a/real", "b/real", "a/fake")),
        device=torch.device("cpu"),
    )
    data = SimpleNamespace(targets=[1, 0, 0, 1, 2, 2])  # two logits for all, and two pseudo-forgeries
    rows = losses.distilled(step, data)
    items = torch.tensor([5, 3, 0, 1, 2])
    found = torch.arange(5)[rows(SimpleNamespace(items=items))].tolist()
    assert found == ([0, 1, 2, 3, 4] if name == "all" else [1, 3])


def test_distillation_over_exemplars_is_their_mean_by_hand_and_nothing_without_any(monkeypatch):
    # Of an exemplar the teacher says 1/4 and 3/4, the student a half each; of the new item they differ more.
    wanted = torch.tensor([[0.0, 2 * math.log(3)], [9.0, -9.0]])
    monkeypatch.setattr(teacher, "teacher_logits", lambda step, data: wanted)
    step = SimpleNamespace(
        options=Options(distilled="exemplars", scheme="bc"),
        old=("a",),
        classes=("a", "b"),
        train=SimpleNamespace(families=("a", "b")),
        device=torch.device("cpu"),
    )
    loss = teacher.interpolated(lambda batch: torch.tensor(0.0), step, SimpleNamespace(targets=[0, 1]))
    logits = torch.zeros(2, 2, requires_grad=True)

    def value(items):
        return loss(SimpleNamespace(output=SimpleNamespace(logits=logits[items]), items=torch.tensor(items)))

    # lambda = 1/2; the cross-entropy of a half with anything is log 2, at temperature 2 too.
    assert value([0, 1]).item() == pytest.approx(math.log(2) / 2, rel=1e-5)
    torch.autograd.backward(value([0, 1]))
    assert logits.grad[0].tolist() == pytest.approx([(1 / 2 - 1 / 4) / 4, (1 / 2 - 3 / 4) / 4], rel=1e-4)
    assert logits.grad[1].tolist() == [0, 0]
    assert value([1]).item() == 0

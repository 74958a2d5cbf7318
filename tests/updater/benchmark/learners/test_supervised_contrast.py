import math

import pytest
import torch

from updater.benchmark.learners.supervised_contrast import supervised_contrast


def test_it_is_what_the_formula_gives_by_hand() -> None:
    # Lengths do not count. Items 0 and 1 are each other's only like; item 2 has none and is only pushed away.
    embedding = torch.tensor([[2.0, 0], [1, 0], [0, 3]])
    expected = -math.log(math.e / (math.e + 1))
    assert float(supervised_contrast(embedding, torch.tensor([0, 0, 1]), 1.0)) == pytest.approx(expected)
    # Now 0 and 2 are alike, at a likeness of 0: 0's other is 1, at a likeness of 1, and 2's too, at 0.
    apart = (math.log(1 + math.e) + math.log(2)) / 2
    assert float(supervised_contrast(embedding, torch.tensor([0, 1, 0]), 1.0)) == pytest.approx(apart)


def test_it_is_nothing_where_no_two_are_alike() -> None:
    embedding = torch.randn(4, 3, requires_grad=True)
    loss = supervised_contrast(embedding, torch.arange(4))
    assert loss.detach() == 0
    torch.autograd.backward(loss)
    assert embedding.grad is not None


def test_following_it_brings_classes_together() -> None:
    random = torch.Generator().manual_seed(0)
    embedding = torch.randn(12, 4, generator=random, requires_grad=True)
    classes = torch.arange(12) % 3
    optimiser = torch.optim.Adam([embedding], 0.1)
    for _ in range(100):
        optimiser.zero_grad()
        torch.autograd.backward(supervised_contrast(embedding, classes))
        optimiser.step()
    unit = torch.nn.functional.normalize(embedding.detach(), dim=1)
    likeness, same = unit @ unit.T, classes[:, None] == classes[None]
    assert float(likeness[same].min()) > float(likeness[~same].max()) + 0.5

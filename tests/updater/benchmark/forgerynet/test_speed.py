"""What a task's training loses by waiting for its data is measured beside the same steps on one batch."""

import time

import numpy as np
import pytest
import torch
from torch import nn

from updater.benchmark.forgerynet import speed
from updater.benchmark.forgerynet.recipes import Recipe
from updater.benchmark.forgerynet.training import Example, Source, Trained, cross_entropy

RECIPE = Recipe(8, 2, 1, 0.01, 0.01, 0.0, (), 0.0)


def of(load_s: float, loads: list[int]) -> Trained:
    def load(row: int, rng: np.random.Generator) -> Example:
        loads.append(row)
        time.sleep(load_s)  # what loading costs here
        return rng.integers(0, 256, (8, 8, 3), dtype=np.uint8), np.array(row)

    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * 3, 2))

    return Trained(make, Source(load, np.full(2, 0.5), "noise"), RECIPE, cross_entropy)


def test_slow_loading_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_ROUNDS", 1)
    told: list[tuple[str, int, int]] = []
    loads: list[int] = []
    device = torch.device("cpu")
    slow = speed.measure(
        "image", of(0.2, loads), seed=0, device=device, steps=4, progress=lambda *at: told.append(at)
    )
    assert slow.share < 0.5
    assert [done for _, done, _ in told] == list(range(1, 21))
    assert {total for _, _, total in told} == {20}
    assert len(loads) == 2 * 10 + 2, "the loop loads every batch, and the other one alone"

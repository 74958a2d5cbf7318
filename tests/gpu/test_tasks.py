"""What only a GPU shows of ForgeryNet's tasks: an epoch by AMP, and whether training waits for its data."""

import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from itertools import repeat
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from updater.benchmark.forgerynet import training
from updater.benchmark.forgerynet.training import (
    PAPER,
    Example,
    Examples,
    TrainingJob,
    cross_entropy,
    draw_batches,
    train,
)
from updater.benchmark.networks.maps import make_map_network
from updater.benchmark.networks.videos import make_video_network


def clips() -> TrainingJob:
    recipe = replace(PAPER["video"], batch=16, steps=30)
    shown = np.random.default_rng(0).integers(0, 256, (8, 16, 224, 224, 3), dtype=np.uint8)

    def load(row: int, rng: np.random.Generator) -> Example:
        return shown[row], np.array(row % 2)

    return TrainingJob(
        lambda: make_video_network("x3d_m", 2, 224, 16),
        Examples(load, np.full(8, 1 / 8), "noise"),
        recipe,
        cross_entropy,
    )


def pictures() -> TrainingJob:
    recipe = replace(PAPER["image"], px=256, batch=16, steps=30)
    rng = np.random.default_rng(0)
    shown = rng.integers(0, 256, (16, 256, 256, 3), dtype=np.uint8)
    truth = (rng.random((16, 256, 256)) < 0.2).astype(np.float32)

    def load(row: int, rng: np.random.Generator) -> Example:
        return shown[row], truth[row]

    def loss(said: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(said[:, 2:], true.flatten(1))

    return TrainingJob(
        lambda: make_map_network("unet:legacy_xception", 256),
        Examples(load, np.full(16, 1 / 16), "noise"),
        recipe,
        loss,
    )


@pytest.mark.parametrize("made", [clips, pictures], ids=["x3d_m", "unet:legacy_xception"])
def test_amp_trains_the_network_of_a_task(gpu, made):
    what = made()
    network = train(what, seed=0, device=gpu, checkpoint=None)
    assert all(torch.isfinite(value).all() for value in network.state_dict().values())


def seconds_of(what: TrainingJob, device: torch.device) -> float:
    """Train for 30 steps, and return the time of all but the first six, whose batches were loaded ahead."""
    read: list[float] = []

    def step(done: int, total: int) -> None:
        if done in (6, total):
            torch.cuda.synchronize(device)
            read.append(time.perf_counter())

    train(what, seed=0, device=device, checkpoint=None, progress=step)
    return read[-1] - read[0]


def on_one_batch(source: Examples, batch: int, steps: range, seed: int) -> Generator[Any, None, None]:
    """Yield the first batch again and again, so that nothing is loaded."""
    with closing(draw_batches(source, batch, range(1), seed)) as batches:
        ready = next(batches)
    yield from repeat(ready, len(steps))


@pytest.mark.parametrize("made", [clips, pictures], ids=["x3d_m", "unet:legacy_xception"])
def test_training_for_a_task_does_not_wait_for_its_data(gpu, made, monkeypatch):
    what, own, fixed = made(), [], []
    for _ in range(3):  # in turns, since a machine's speed drifts
        own.append(seconds_of(what, gpu))
        with monkeypatch.context() as patch:
            patch.setattr(training, "draw_batches", on_one_batch)
            fixed.append(seconds_of(what, gpu))
    assert median(fixed) / median(own) >= 0.9

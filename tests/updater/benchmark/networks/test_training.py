"""Every network trains three steps, is interrupted, goes on, and ends with an unbroken training's weights."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from updater.benchmark.forgerynet import training
from updater.benchmark.forgerynet.training import NetworkRecipe
from updater.benchmark.networks import deeperforensics
from updater.benchmark.networks.images import make_image_network
from updater.benchmark.networks.maps import make_map_network, map_of
from updater.benchmark.networks.videos import make_video_network, sampling_of

RECIPE = NetworkRecipe(32, 2, 3, 0.01, 0.01, 0.0, (0.5,), 1e-4, frames=8)
OF_MAPS = replace(RECIPE, px=64, rate=1e-4, first_rate=1e-4)
"""at 32 px the deepest map is a single cell, too few to normalise by"""
VIDEO_NETWORKS = (
    "x3d_m slowfast_r50 slow_r50 tsm_r50 c3d i3d lstm:test_resnet tsn:test_resnet frames:test_resnet"
    " frames:highpass:test_resnet r3d_18 mc3_18 r2plus1d_18 s3d"
)
MADE: dict[str, tuple[Callable[[], nn.Module], int]] = {
    **{
        name: (lambda name=name: make_image_network(name, 2, RECIPE.px), 0)
        for name in ("mobilenetv3_small_050", "ela:test_resnet", "highpass:test_resnet", "gram:test_resnet")
    },
    # But for mvit_v2_s, which takes clips of one size alone, and a minute for them.
    **{
        name: (lambda name=name: make_video_network(name, 2, RECIPE.px, 8), sampling_of(name).frames or 8)
        for name in VIDEO_NETWORKS.split()
    },
    **{
        name: (lambda name=name: make_map_network(name, OF_MAPS.px), -1)
        for name in ("regression:test_resnet", "unet:resnet18", "hrnet_w48")
    },
}


def map_loss(said: Tensor, truth: Tensor) -> Tensor:
    return (map_of(said) - truth).square().mean() + said[:, :2].logsumexp(1).mean()


def trained(name: str, checkpoint: Path, progress: Callable[[int, int], None]) -> dict[str, Tensor]:
    make, frames = MADE[name]
    recipe = OF_MAPS if frames < 0 else RECIPE
    px = recipe.px

    def load(row: int, rng: np.random.Generator) -> training.Example:
        shape = (frames, px, px, 3) if frames > 0 else (px, px, 3)
        shown = rng.integers(0, 256, shape, dtype=np.uint8)
        truth = rng.random((px, px), np.float32) if frames < 0 else np.array(row)
        return shown, truth

    network = training.train(
        make,
        training.Examples(load, np.full(2, 0.5), name),
        recipe,
        map_loss if frames < 0 else training.cross_entropy,
        seed=0,
        device=torch.device("cpu"),
        checkpoint=checkpoint,
        progress=progress,
    )
    return network.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_a_network_that_was_interrupted_ends_with_the_same_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("updater.training.fit.SAVE_EVERY", 2)
    # C3D's two wide layers are 60 million weights, of which each checkpoint would hold two copies.
    monkeypatch.setattr(deeperforensics, "_WIDE", 64)
    file, left = tmp_path / "unbroken", tmp_path / "interrupted"
    steps: list[int] = []

    def keep(done: int, total: int) -> None:
        if done == 3:  # what a training that ends here leaves behind
            shutil.copy(file, left)

    unbroken = trained(name, file, keep)
    resumed = trained(name, left, lambda done, total: steps.append(done))
    assert steps == [3]
    assert resumed.keys() == unbroken.keys()
    for key, value in unbroken.items():
        assert torch.equal(resumed[key], value), key
    assert all(bool(torch.isfinite(value).all()) for value in unbroken.values() if value.is_floating_point())

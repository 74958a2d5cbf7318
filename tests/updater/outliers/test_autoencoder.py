import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from updater.outliers.autoencoder import Autoencoder, train_autoencoder

pytestmark = pytest.mark.slow  # it trains networks

CPU = torch.device("cpu")


def crops(count: int = 12, side: int = 64) -> np.ndarray:
    rng = np.random.default_rng(1)
    y, x = np.mgrid[0:side, 0:side] / side
    waves = [50 * np.sin(6 * (rng.uniform(0, 2) * x + rng.uniform(0, 2) * y)) for _ in range(count)]
    return (128 + np.array(waves)[..., None].repeat(3, -1)).clip(0, 255).astype(np.uint8)


def levels(some: np.ndarray) -> Tensor:
    return torch.from_numpy(some).float().permute(0, 3, 1, 2)


def test_every_draw_gives_back_the_size_that_went_in() -> None:
    for seed in range(12):
        autoencoder = Autoencoder(np.random.default_rng(seed))
        assert autoencoder(torch.zeros(1, 3, 32, 64)).shape == (1, 3, 32, 64)


def test_training_brings_it_close_to_pictures_that_it_did_not_see() -> None:
    some = crops()
    error = {
        steps: float(
            F.l1_loss(train_autoencoder(some[:8], 0, CPU, steps=steps)(levels(some[8:])), levels(some[8:]))
        )
        for steps in (1, 60)
    }
    assert error[60] < 0.5 * error[1]


def test_a_seed_repeats_it_and_leaves_the_global_random_state() -> None:
    before = torch.get_rng_state()
    first, again = (train_autoencoder(crops(), 4, CPU, steps=2) for _ in range(2))
    assert torch.equal(first(levels(crops())), again(levels(crops())))
    assert torch.equal(torch.get_rng_state(), before)

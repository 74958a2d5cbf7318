import numpy as np
import pytest
from numpy.typing import NDArray

from updater.outliers.source_compression import Saved, save, saved_as


def photograph(side: int = 136) -> NDArray[np.uint8]:
    rng = np.random.default_rng(2)
    y, x = np.mgrid[0:side, 0:side] / side
    channels = [128 + 60 * np.sin(9 * (rng.uniform(0, 2) * x + rng.uniform(0, 2) * y)) for _ in range(3)]
    return (np.stack(channels, 2) + rng.normal(0, 5, (side, side, 3))).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("quality", [65, 75, 85, 92])
@pytest.mark.parametrize("subsampling", [0, 2])
def test_how_a_crop_was_saved_is_found(quality: int, subsampling: int) -> None:
    how = Saved(quality, subsampling)
    assert saved_as(save(photograph(), how)[:128, :128]) == how


def test_nothing_is_found_without_loss_or_beside_the_grid() -> None:
    assert saved_as(photograph()[:128, :128]) is None
    assert saved_as(save(photograph(), Saved(75, 2))[3:131, 5:133]) is None

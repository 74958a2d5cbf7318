import numpy as np
import pytest
import scipy.fft
import torch

from detector.features.forensics import ForensicFeatures
from detector.release.architecture import TRACE_COLUMNS


def crops(seed: int, count: int = 2, side: int = 64) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    smooth = rng.normal(0, 1, (count, 3, side, side)).cumsum(2).cumsum(3)
    smooth = 128 + 100 * smooth / np.abs(smooth).max()
    return torch.from_numpy(np.clip(smooth + rng.normal(0, 3, smooth.shape), 0, 255)).float()


@pytest.fixture(scope="module")
def features() -> ForensicFeatures:
    return ForensicFeatures(64)


def test_each_crop_gets_its_own_features_whatever_is_beside_it(features: ForensicFeatures) -> None:
    both = crops(0)
    together = features(both)
    assert together.shape == (2, features.width)
    assert torch.allclose(features(both[:1]), together[:1], atol=1e-4)


def test_the_columns_of_each_kind_of_trace_are_its_own(features: ForensicFeatures) -> None:
    images = crops(5)
    planes = torch.einsum("dc,nchw->ndhw", features.ycc, images)
    luma = planes[:, :1] - 128
    local = features.local_noise(luma, planes[:, 1:], features.local_filters(luma))
    everything = features(images)
    residuals, spectrum, noise, edges = (everything[:, columns] for columns in TRACE_COLUMNS)
    assert residuals.shape[1] == 6 * 7  # the first group: seven statistics of each residual
    assert torch.allclose(spectrum, features.spectrum(planes[:, 0]), atol=1e-4)
    assert torch.allclose(noise[:, -10:], local, atol=1e-4)
    assert torch.allclose(edges, features.edge_detail(luma), atol=1e-4)


def test_flat_black_and_saturated_crops_have_finite_features(features: ForensicFeatures) -> None:
    extremes = torch.stack([torch.zeros(3, 64, 64), torch.full((3, 64, 64), 255.0)])
    assert features(extremes).isfinite().all()


def test_a_tiny_difference_in_stays_small(features: ForensicFeatures) -> None:
    original = crops(1)
    noise = 1e-4 * torch.randn(original.shape, generator=torch.Generator().manual_seed(0))
    assert (features(original + noise) - features(original)).abs().max() < 5e-3


def test_the_channels_correlations_are_summed_without_losing_the_faint_terms() -> None:
    rng = np.random.default_rng(4)
    # Beside hard edges the faint grain of the rest is lost in one long sum in single precision.
    grain = 128 + rng.normal(0, 0.4, (1, 3, 128, 128))
    grain[:, :, :24] = rng.choice([68.0, 188.0], (1, 1, 24, 128))
    images = torch.from_numpy(grain).float()
    single, double = ForensicFeatures(128)(images), ForensicFeatures(128).double()(images.double())
    correlations = slice(-18, -15)
    assert torch.allclose(single.double()[:, correlations], double[:, correlations], rtol=0, atol=1e-6)


def test_the_block_transform_is_the_orthonormal_cosine_transform(features: ForensicFeatures) -> None:
    block = np.random.default_rng(3).normal(0, 30, (8, 8))
    ours = (features.dct.double().numpy()[:, 0] * block).sum((1, 2))
    assert np.allclose(ours, scipy.fft.dctn(block, norm="ortho").ravel(), atol=1e-4)


def test_what_forgeries_disturb_is_seen(features: ForensicFeatures) -> None:
    original = crops(4, count=8)
    blurred = torch.nn.functional.avg_pool2d(original, 3, 1, 1)
    grid = original.clone()
    grid[:, :, ::2, ::2] += 3
    usual = features(original)
    spread = usual.std(0) + 0.01
    for forged in (blurred, grid):
        assert ((features(forged) - usual).mean(0).abs() / spread).max() > 5


@pytest.mark.parametrize("side", [0, 24, 100])
def test_a_side_off_the_jpeg_grid_is_refused(side: int) -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        ForensicFeatures(side)

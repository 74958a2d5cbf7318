import numpy as np
import pytest
import torch

from detector.features.local_noise import LocalFilters, LocalNoise, NoiseLevels, _spread, _unexplained

LUMA, COLOUR = slice(0, 3), slice(6, 10)


def planes(seed: int, luma_noise: torch.Tensor, colour_noise: torch.Tensor) -> torch.Tensor:
    """Return float32 [1, 3, 128, 128]: a soft ramp with noise of these deviations, [128, 128] each."""
    draw = torch.randn(3, 128, 128, generator=torch.Generator().manual_seed(seed))
    ramp = torch.linspace(60, 190, 128).expand(128, 128)
    return torch.stack([ramp + luma_noise * draw[0], colour_noise * draw[1], colour_noise * draw[2]])[None]


def patch(inside: float, outside: float) -> torch.Tensor:
    deviations = torch.full((128, 128), outside)
    deviations[40:100, 30:90] = inside
    return deviations


def measured(planes: torch.Tensor) -> torch.Tensor:
    luma, chroma = planes[:, :1], planes[:, 1:]
    found: torch.Tensor = LocalNoise(planes.shape[2])(luma, chroma, LocalFilters()(luma))[0]
    return found


def test_a_region_of_other_noise_spreads_the_noise_of_luminance_and_of_colour() -> None:
    even = torch.full((128, 128), 2.0)
    same = measured(planes(0, even, even))
    other = measured(planes(0, patch(6, 2), patch(6, 2)))
    assert (other[LUMA].abs() > 1.5 * same[LUMA].abs()).all()
    assert (other[COLOUR][1:].abs() > 1.5 * same[COLOUR][1:].abs()).all()


def test_noise_that_follows_brightness_is_explained() -> None:
    follows = torch.linspace(1, 5, 128).expand(128, 128)
    explained = measured(planes(1, follows, follows))
    region = measured(planes(1, patch(5, 1), patch(5, 1)))
    assert explained[0] < 0.5 * region[0]


def test_what_a_straight_line_explains_is_taken_out_whatever_else_explains_it() -> None:
    generator = torch.Generator().manual_seed(2)
    first, second, rest = (10 * torch.randn(2, 20, 10, generator=generator) for _ in range(3))
    leaning = first + 0.5 * second
    left = _unexplained([3 * first - 2 * second + 0.1 * rest], [first, leaning]).flatten(2)
    design = torch.stack([torch.ones(200), first[0].flatten(), leaning[0].flatten()], 1)
    values = (3 * first - 2 * second + 0.1 * rest)[0].flatten()
    wanted = values - design @ torch.linalg.lstsq(design, values[:, None]).solution[:, 0]
    assert torch.allclose(left[0, 0], wanted, atol=0.2)
    assert _spread(left, 200)[:, :, 0].abs().max() < 1e-5


def test_a_flat_crop_has_no_spread_and_no_surprise() -> None:
    values = measured(torch.full((1, 3, 32, 32), 90.0))
    assert values.isfinite().all()
    assert values[LUMA].abs().max() < 0.02


def test_the_spread_is_the_mean_the_deviation_and_how_far_the_outermost_tenths_lie() -> None:
    values = torch.arange(40.0).flip(0)[None, None]
    mean, deviation, above, below = _spread(values, 40)[0, 0].tolist()
    assert mean == 19.5
    assert deviation == pytest.approx(np.arange(40).std(), abs=1e-4)
    assert above == pytest.approx(np.mean([36, 37, 38, 39]) - 19.5)
    assert below == pytest.approx(np.mean([0, 1, 2, 3]) - 19.5)


def test_noise_that_differs_in_sharpness_alone_spreads_the_sharpness() -> None:
    residuals = torch.randn(2, 124, 124, generator=torch.Generator().manual_seed(3))
    slower = residuals.clone()
    slower[0, 40:100, 30:90] *= 4
    levels = NoiseLevels(124)(torch.stack([residuals, slower]))
    noise, sharpness = levels[:, 1], levels[:, 5]
    assert noise[0] == noise[1]
    assert sharpness[1] > 2 * sharpness[0]

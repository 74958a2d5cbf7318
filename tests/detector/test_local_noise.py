import torch

from detector.local_noise import LocalNoise, _spread, _unexplained

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


def test_a_region_of_other_noise_spreads_the_noise_of_luminance_and_of_colour() -> None:
    measure, even = LocalNoise(), torch.full((128, 128), 2.0)
    same = measure(planes(0, even, even))[0]
    other = measure(planes(0, patch(6, 2), patch(6, 2)))[0]
    assert (other[LUMA].abs() > 1.5 * same[LUMA].abs()).all()
    assert (other[COLOUR][1:].abs() > 1.5 * same[COLOUR][1:].abs()).all()


def test_noise_that_follows_brightness_is_explained() -> None:
    follows = torch.linspace(1, 5, 128).expand(128, 128)
    measure = LocalNoise()
    explained = measure(planes(1, follows, follows))[0]
    region = measure(planes(1, patch(5, 1), patch(5, 1)))[0]
    assert explained[0] < 0.5 * region[0]


def test_what_a_straight_line_explains_is_taken_out_whatever_else_explains_it() -> None:
    generator = torch.Generator().manual_seed(2)
    first, second, rest = (10 * torch.randn(2, 200, generator=generator) for _ in range(3))
    leaning = first + 0.5 * second
    left = _unexplained(3 * first - 2 * second + 0.1 * rest, [first, leaning])
    design = torch.stack([torch.ones(200), first[0], leaning[0]], 1)
    values = (3 * first - 2 * second + 0.1 * rest)[0]
    wanted = values - design @ torch.linalg.lstsq(design, values[:, None]).solution[:, 0]
    assert torch.allclose(left[0], wanted, atol=0.2)
    assert _spread(left)[:, 0].abs().max() < 1e-5


def test_a_flat_crop_has_no_spread_and_no_surprise() -> None:
    values = LocalNoise()(torch.full((1, 3, 32, 32), 90.0))
    assert values.isfinite().all()
    assert values[0, LUMA].abs().max() < 0.02

import numpy as np
import pytest
import torch
from torch import Tensor

from updater.outliers.random_decoder import RandomDecoder, random_decoder
from updater.outliers.simulated_generator import simulated_generator

CPU = torch.device("cpu")


def pictures(count: int = 2, side: int = 64) -> Tensor:
    """Smooth scenes with grain."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[0:side, 0:side] / side
    waves = [60 * np.sin(6 * (rng.uniform(0, 2) * x + rng.uniform(0, 2) * y)) for _ in range(3 * count)]
    levels = 128 + np.array(waves).reshape(count, 3, side, side) + rng.normal(0, 4, (count, 3, side, side))
    return torch.from_numpy(levels.clip(0, 255)).float()


def drawn(seed: int) -> RandomDecoder:
    return random_decoder(np.random.default_rng(seed), CPU)


@pytest.mark.parametrize("seed", range(12))
def test_a_draw_does_the_same_again_and_another_draw_something_else(seed: int) -> None:
    given = pictures()
    made = drawn(seed)(given)
    assert made.shape == given.shape
    assert 0 <= float(made.min()) <= float(made.max()) <= 255
    assert torch.equal(made, drawn(seed)(given))
    assert float((made - drawn(seed + 100)(given)).abs().mean()) > 0.2


def test_every_picture_gets_what_it_would_get_alone() -> None:
    given, decoder = pictures(3), drawn(5)
    assert torch.allclose(decoder(given)[1:2], decoder(given[1:2]), atol=1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_a_generated_picture_shows_the_same_and_is_another_in_its_detail(seed: int) -> None:
    given = pictures()
    generator = simulated_generator(np.random.default_rng(seed), (), 64, CPU)
    made = generator(given)
    coarse = torch.nn.functional.avg_pool2d(made - given, 8)
    assert float(coarse.abs().mean()) < 4
    assert float((made - given).abs().mean()) > 0.3


def test_a_masked_generator_leaves_the_rest_as_it_was() -> None:
    draws = (simulated_generator(np.random.default_rng(seed), (), 64, CPU) for seed in range(100))
    generator = next(one for one in draws if one.mask is not None)
    assert generator.mask is not None
    outside = (generator.mask == 0).expand(2, 3, 64, 64)
    given = pictures()
    made = generator(given)
    assert torch.equal(made[outside], given[outside])
    assert not torch.allclose(made[~outside], given[~outside], atol=0.5)


def test_sides_that_no_doubling_fits_are_kept() -> None:
    given = pictures(1)[:, :, :61, :50]
    for seed in range(6):
        generator = simulated_generator(np.random.default_rng(seed), (), 64, CPU)
        if generator.mask is None:
            assert generator(given).shape == given.shape


def test_autoencoders_are_drawn_where_there_are_some() -> None:
    seen: list[Tensor] = []

    def learnt(levels: Tensor) -> Tensor:
        seen.append(levels)
        return levels

    for seed in range(20):
        simulated_generator(np.random.default_rng(seed), (learnt,), 64, CPU)(pictures())
    assert 2 < len(seen) < 16

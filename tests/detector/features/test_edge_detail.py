import pytest
import torch

from detector.features.edge_detail import EdgeDetail

FINE_STEEPNESS, FINE_LEVELS, SMOOTH_LEVELS = 0, slice(2, 7), slice(13, 18)


def step_edge(height: float, side: int = 64) -> torch.Tensor:
    """Return float32 [1, 1, side, side]: one vertical edge of that many grey levels, a little soft."""
    across = 128 + height / 2 * torch.tanh((torch.arange(side) - side / 2) / 1.5)
    return across.expand(1, 1, side, side).float()


@pytest.fixture(scope="module")
def measure() -> EdgeDetail:
    return EdgeDetail(64)


def test_a_ramp_is_as_steep_as_its_slope_and_has_no_detail(measure: EdgeDetail) -> None:
    ramp = (3.0 * torch.arange(64)).expand(1, 1, 64, 64)
    values = measure(ramp)[0]
    assert values[:2].exp().tolist() == pytest.approx([3.0, 3.0], rel=0.01)
    # Half the log of the floor: a straight line loses nothing to a symmetric blur.
    assert values[SMOOTH_LEVELS].tolist() == pytest.approx(
        [0.5 * torch.tensor(0.05).log().item()] * 5, abs=0.01
    )


def test_an_edge_has_the_same_relative_detail_at_any_contrast(measure: EdgeDetail) -> None:
    low, high = measure(step_edge(60))[0], measure(step_edge(180))[0]
    assert high[FINE_STEEPNESS] - low[FINE_STEEPNESS] == pytest.approx(
        torch.tensor(3.0).log().item(), abs=0.01
    )
    assert torch.allclose(low[FINE_LEVELS], high[FINE_LEVELS], atol=0.05)


def test_halos_along_an_edge_raise_its_detail_though_noise_is_everywhere(measure: EdgeDetail) -> None:
    grain = 3 * torch.randn(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    edge = step_edge(120)
    blurred = torch.nn.functional.avg_pool2d(torch.nn.functional.pad(edge, (2, 2, 2, 2), "replicate"), 5, 1)
    haloed = edge + 1.5 * (edge - blurred)
    plain, sharp = measure(edge + grain)[0], measure(haloed + grain)[0]
    assert (sharp[FINE_LEVELS] - plain[FINE_LEVELS]).min() > 0.05
    # The widest bands see the edge from afar; the finest see the noise alone.
    assert torch.allclose(sharp[SMOOTH_LEVELS][:2], plain[SMOOTH_LEVELS][:2], atol=0.02)

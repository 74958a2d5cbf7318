"""What each cell of a crop has: it is the cell's own, and of the whole crop's features nothing changes."""

import pytest
import torch
from torch import Tensor

from detector.features.cell_traces import CELL_VERSION, CELL_WIDTH, CELLS, TRACES, CellTraces, FrameFeatures
from detector.features.forensics import ForensicFeatures


def crops(side: int) -> Tensor:
    return torch.randint(0, 256, (3, 3, side, side), generator=torch.Generator().manual_seed(side)).float()


@pytest.mark.parametrize("side", [32, 72, 128])
def test_noise_in_one_place_is_seen_in_its_cells_alone(side: int) -> None:
    luma = torch.zeros(1, 1, side, side)
    middle = slice(side // 4 + 4, side // 2 - 4) if side > 32 else slice(side // 4 + 2, side // 4 + 4)
    luma[..., middle, middle] = torch.randn(1, 1, *luma[..., middle, middle].shape[2:])
    found = CellTraces(side)(luma).reshape(TRACES, CELLS, CELLS) - torch.log(torch.tensor(0.1))
    forged = found.abs() > 1e-4
    assert (forged.flatten(1).sum(1) > 0).all()
    assert not forged[:, CELLS // 2 + 1 :].any()
    assert not forged[:, :, CELLS // 2 + 1 :].any()


def test_a_trace_is_the_log_of_the_mean_squared_residual() -> None:
    luma = crops(64)[:1, :1]
    across = luma[..., :-2] - 2 * luma[..., 1:-1] + luma[..., 2:]
    wanted = torch.log(across[0, 0, 8:16, 15:23].square().mean() + 0.1)
    found = CellTraces(64)(luma).reshape(TRACES, CELLS, CELLS)
    assert found[0, 1, 2] == pytest.approx(float(wanted), abs=1e-4)


def test_a_frame_has_the_features_of_its_crop_and_behind_them_those_of_its_cells() -> None:
    features, shown = FrameFeatures(64), crops(64)
    found = features(shown)
    assert found.shape == (3, features.width)
    assert torch.equal(found[:, :-CELL_WIDTH], ForensicFeatures(64)(shown))
    assert torch.allclose(found[1:2], features(shown[1:2]), atol=1e-4)


def test_flat_and_saturated_crops_have_finite_features() -> None:
    for level in (0, 128, 255):
        assert torch.isfinite(FrameFeatures(64)(torch.full((1, 3, 64, 64), float(level)))).all()


def test_the_traces_of_this_version_are_what_they_were() -> None:
    at = torch.arange(64.0)
    luma = ((at[:, None] ** 2 + 3 * at * at[:, None] % 37) % 200)[None, None]
    traces = CellTraces(64)(luma).reshape(TRACES, -1)
    assert CELL_VERSION == "1"
    assert traces.mean(1).tolist() == pytest.approx([7.188, 9.566, 7.461, 7.994, 5.854, 8.193], abs=2e-3)

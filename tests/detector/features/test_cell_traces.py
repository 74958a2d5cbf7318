"""What each cell of a crop has: it is the cell's own, and of the whole crop's features nothing changes."""

import pytest
import torch
from torch import Tensor

from detector.features.cell_traces import (
    CELL_VERSION,
    CELL_WIDTH,
    CELLS,
    EDGES_WIDTH,
    REACHES,
    TRACES,
    CellTraces,
    FrameFeatures,
    paired_edges,
)
from detector.features.forensics import ForensicFeatures


def crops(side: int) -> Tensor:
    return torch.randint(0, 256, (3, 3, side, side), generator=torch.Generator().manual_seed(side)).float()


@pytest.mark.parametrize("side", [32, 72, 128])
def test_noise_in_one_place_is_seen_in_its_cells_alone(side):
    luma = torch.zeros(1, 1, side, side)
    middle = slice(side // 4 + 4, side // 2 - 4) if side > 32 else slice(side // 4 + 2, side // 4 + 4)
    luma[..., middle, middle] = torch.randn(1, 1, *luma[..., middle, middle].shape[2:])
    found = CellTraces(side)(luma).reshape(TRACES, CELLS, CELLS) - torch.log(torch.tensor(0.1))
    forged = found.abs() > 1e-4
    assert (forged.flatten(1).sum(1) > 0).all()
    assert not forged[:, CELLS // 2 + 1 :].any()
    assert not forged[:, :, CELLS // 2 + 1 :].any()


def test_a_trace_is_the_log_of_the_mean_squared_residual():
    luma = crops(64)[:1, :1]
    across = luma[..., :-2] - 2 * luma[..., 1:-1] + luma[..., 2:]
    wanted = torch.log(across[0, 0, 8:16, 15:23].square().mean() + 0.1)
    found = CellTraces(64)(luma).reshape(TRACES, CELLS, CELLS)
    assert found[0, 1, 2] == pytest.approx(float(wanted), abs=1e-4)


def test_a_frame_has_the_features_of_its_crop_and_behind_them_those_of_its_cells():
    features, shown = FrameFeatures(64), crops(64)
    found = features(shown)
    assert found.shape == (3, features.width)
    assert torch.equal(found[:, :-CELL_WIDTH], ForensicFeatures(64)(shown))
    assert torch.allclose(found[1:2], features(shown[1:2]), atol=1e-4)


def test_flat_and_saturated_crops_have_finite_features():
    for level in (0, 128, 255):
        assert torch.isfinite(FrameFeatures(64)(torch.full((1, 3, 64, 64), float(level)))).all()


def test_the_traces_of_this_version_are_what_they_were():
    at = torch.arange(64.0)
    luma = ((at[:, None] ** 2 + 3 * at * at[:, None] % 37) % 200)[None, None]
    traces = CellTraces(64)(luma).reshape(TRACES, -1)
    assert CELL_VERSION == "1"
    assert traces.mean(1).tolist() == pytest.approx([7.188, 9.566, 7.461, 7.994, 5.854, 8.193], abs=2e-3)


EACH = TRACES + 1
RISING, FALLING, APART = 0, 1, 2


def clip(frames: int, changes: list[tuple[int, int, float]]) -> Tensor:
    """Noise in all cells, and in six of them changes of the frames first … end - 1."""
    traces = 0.05 * torch.randn(frames, TRACES, CELLS**2, generator=torch.Generator().manual_seed(frames))
    for first, end, by in changes:
        traces[first:end, :, 9:15] += by
    return traces.flatten(1)


def of_all_traces(found: Tensor, kind: int, reach: int = 0) -> Tensor:
    return found.unflatten(1, (len(REACHES), 3, EACH))[:, reach, kind, -1]


@pytest.mark.parametrize(("by", "kind"), [(1.0, RISING), (-1.0, FALLING)])
def test_a_stretch_is_seen_from_its_first_frame_to_its_last(by, kind):
    found = paired_edges(clip(60, [(20, 35, by)]))
    assert found.shape == (60, EDGES_WIDTH)
    for reach in range(len(REACHES)):
        inside = of_all_traces(found, kind, reach)
        beyond = torch.cat([inside[:18], inside[37:]])
        assert inside[20:35].min() > 4 * beyond.max()


def test_a_gap_between_two_stretches_is_told_from_them():
    found = paired_edges(clip(80, [(15, 30, 1.0), (45, 60, 1.0)]))
    for kind in (RISING, FALLING):
        assert of_all_traces(found, kind)[30:45].min() > 0.2
    apart = of_all_traces(found, APART)
    assert torch.stack([apart[15:30].min(), apart[45:60].min()]).min() > 4 * apart[33:42].max()


def test_one_edge_alone_is_no_stretch_nor_is_noise():
    stretch = of_all_traces(paired_edges(clip(60, [(20, 35, 1.0)])), RISING).max()
    for changes in ([], [(30, 60, 1.0)]):
        assert paired_edges(clip(60, changes)).max() < 0.2 * stretch


def test_what_changes_in_few_frames_is_no_stretch():
    found = paired_edges(clip(60, [(30, 34, 1.0)]))
    stretch = paired_edges(clip(60, [(30, 42, 1.0)]))
    assert of_all_traces(found, RISING).max() < 0.2 * of_all_traces(stretch, RISING).max()


def test_a_clip_of_any_length_has_finite_ones():
    for frames in (1, 2, 7, 96, 150):
        found = paired_edges(torch.randn(frames, CELL_WIDTH))
        assert found.shape == (frames, EDGES_WIDTH)
        assert torch.isfinite(found).all()
        assert (found >= 0).all()

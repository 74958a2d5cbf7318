"""A frame lies between two edges where some cells change, and later change back."""

import pytest
import torch
from torch import Tensor

from detector.features.cell_traces import CELL_WIDTH, CELLS, TRACES
from detector.features.paired_edges import EDGES_WIDTH, REACHES, paired_edges

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
def test_a_stretch_is_seen_from_its_first_frame_to_its_last(by: float, kind: int) -> None:
    found = paired_edges(clip(60, [(20, 35, by)]))
    assert found.shape == (60, EDGES_WIDTH)
    for reach in range(len(REACHES)):
        inside = of_all_traces(found, kind, reach)
        beyond = torch.cat([inside[:18], inside[37:]])
        assert inside[20:35].min() > 4 * beyond.max()


def test_a_gap_between_two_stretches_is_told_from_them() -> None:
    found = paired_edges(clip(80, [(15, 30, 1.0), (45, 60, 1.0)]))
    for kind in (RISING, FALLING):
        assert of_all_traces(found, kind)[30:45].min() > 0.2
    apart = of_all_traces(found, APART)
    assert torch.stack([apart[15:30].min(), apart[45:60].min()]).min() > 4 * apart[33:42].max()


def test_one_edge_alone_is_no_stretch_nor_is_noise() -> None:
    stretch = of_all_traces(paired_edges(clip(60, [(20, 35, 1.0)])), RISING).max()
    for changes in ([], [(30, 60, 1.0)]):
        assert paired_edges(clip(60, changes)).max() < 0.2 * stretch


def test_what_changes_in_few_frames_is_no_stretch() -> None:
    found = paired_edges(clip(60, [(30, 34, 1.0)]))
    stretch = paired_edges(clip(60, [(30, 42, 1.0)]))
    assert of_all_traces(found, RISING).max() < 0.2 * of_all_traces(stretch, RISING).max()


def test_a_clip_of_any_length_has_finite_ones() -> None:
    for frames in (1, 2, 7, 96, 150):
        found = paired_edges(torch.randn(frames, CELL_WIDTH))
        assert found.shape == (frames, EDGES_WIDTH)
        assert torch.isfinite(found).all()
        assert (found >= 0).all()

"""Noise and detail of each place of a crop, and the edges in time that a forged stretch leaves there.

A codec changes all cells for a frame or two and a scene changes them slowly. A forged region changes few
cells, at once, and later back.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.features.forensics import ForensicFeatures, residual_kernels

CELLS, TRACES = 8, 6
# columns of a crop
CELL_WIDTH = TRACES * CELLS**2
# of what these columns are; it goes up with every change of their values
CELL_VERSION = "1"
_REACH = 2
_FLOOR = 0.1


class CellTraces(nn.Module):
    """Luminance, float32 [N, 1, S, S] → float32 [N, CELL_WIDTH]: six traces of each of 8 x 8 cells.

    A trace is log(mean of r² + 0.1) over a cell: r is the residual of second order across, down and along
    both (3 x 3 and 5 x 5; Fridrich and Kodovsky 2012, "Rich models for steganalysis"), and that across and
    down of the crop at half its size. Trace by trace, and in it row by row. S is even, and at least 32.
    """

    kernels: Tensor
    rows: Tensor
    half_rows: Tensor

    def __init__(self, crop_px: int) -> None:
        super().__init__()
        self.register_buffer("kernels", residual_kernels()[2:], persistent=False)
        self.register_buffer("rows", _shares(crop_px), persistent=False)
        self.register_buffer("half_rows", _shares(crop_px // 2), persistent=False)

    def forward(self, luma: Tensor) -> Tensor:
        whole = _pool_cells(_residuals(luma, self.kernels), self.rows)
        half = _pool_cells(_residuals(F.avg_pool2d(luma, 2), self.kernels[:2]), self.half_rows)
        return torch.log(torch.cat([whole, half], 1) + _FLOOR).flatten(1)


class FrameFeatures(nn.Module):
    """Crops, float32 [N, 3, S, S] in 0..255 → the features of a frame, float32 [N, width].

    The forensic features of the whole crop, and the traces of its cells behind these.
    """

    luma: Tensor

    def __init__(self, crop_px: int) -> None:
        """Raises ValueError for a side that has no forensic features."""
        super().__init__()
        self.forensics, self.cells = ForensicFeatures(crop_px), CellTraces(crop_px)
        self.register_buffer("luma", torch.tensor([[0.299, 0.587, 0.114]]), persistent=False)
        self.crop_px = crop_px
        self.width = self.forensics.width + CELL_WIDTH

    def forward(self, crops: Tensor) -> Tensor:
        side = self.crop_px
        # Runtimes are slow at convolutions of one pixel into one channel.
        luma = (self.luma @ crops.reshape(-1, 3, side**2)).reshape(-1, 1, side, side)
        return torch.cat([self.forensics(crops), self.cells(luma)], 1)


def _residuals(luma: Tensor, kernels: Tensor) -> Tensor:
    return F.conv2d(F.pad(luma, (_REACH,) * 4, mode="replicate"), kernels)


def _pool_cells(residuals: Tensor, shares: Tensor) -> Tensor:
    """Return the mean square of each cell, float32 [N, C, CELLS, CELLS]."""
    return shares.T @ (residuals.square() @ shares)


def _shares(side: int) -> Tensor:
    """Return each pixel's weight in each cell along a side, float32 [side, CELLS]; a cell's sum is 1."""
    of_pixel = torch.arange(side) * CELLS // side
    within = F.one_hot(of_pixel, CELLS).float()
    return within / within.sum(0)


# frames before and behind a frame that are held against each other
REACHES = (8, 4)
EDGES_WIDTH = len(REACHES) * 3 * (TRACES + 1)
# of a trace, beneath what the frames themselves show
_NOISE = 0.03
# deviations beneath which two edges are none: in one trace, and in the mean over traces
_OF_ONE, _OF_ALL = 2.0, 1.5
# frames between two edges
_SHORTEST = 6
_DOUBLINGS = 7


def paired_edges(traces: Tensor) -> Tensor:
    """Return how strongly each frame lies between two edges, float32 [T, EDGES_WIDTH], >= 0.

    traces: of one clip's frames, float32 [T, CELL_WIDTH]. An edge at frame t is the mean of the next frames
    less that of those before, in deviations of that mean. A pair of edges a < b, b - a >= 6, has in a cell
    the strength min(edge_a, -edge_b), of which only what exceeds a floor counts; the mean over cells is the
    pair's. A frame t has the strongest pair with a <= t < b. For each reach: of the six traces and of their
    mean, the log of 1 + that of a region that rises, of one that falls, and how far apart these two are.
    Between two stretches both are high, so that the third tells a stretch from the gap behind it.
    """
    by_cell = traces.reshape(-1, TRACES, CELLS**2).transpose(0, 1)
    by_cell = by_cell - by_cell.mean(1, keepdim=True)
    rising = _pairs(torch.stack([_edges(by_cell, reach) for reach in REACHES], 1))
    # A region that falls is a pair the other way round in time.
    strengths = torch.log1p(_between(torch.stack([rising, rising.transpose(2, 3)], 2)))
    apart = (strengths[:, :, :1] - strengths[:, :, 1:]).abs()
    return torch.cat([strengths, apart], 2).permute(3, 1, 2, 0).flatten(1)


def _edges(by_cell: Tensor, reach: int) -> Tensor:
    """float32 [C, T, N] → [C, T + 1, N]: of frame t beside those before it; 0 at both ends of the clip."""
    # How far each frame lies behind each edge.
    frames = _count(by_cell[0, :, 0])
    behind = frames[None] - F.pad(frames + 1, (1, 0))[:, None]
    before_it = ((behind < 0) & (behind >= -reach)).float()
    after_it = ((behind >= 0) & (behind < reach)).float()
    mean_before, spread_before = _moments(by_cell, before_it)
    mean_after, spread_after = _moments(by_cell, after_it)
    noise = torch.sqrt((spread_before + spread_after).clamp_min(0) / (1.5 * reach)) + _NOISE
    has_both = (before_it.sum(1) * after_it.sum(1)).clamp(0, 1)
    return (mean_after - mean_before) / noise * has_both[:, None]


def _count(row: Tensor) -> Tensor:
    """Return 0, 1, 2 … as many as the row has; so that tracing leaves the number open."""
    return torch.ones_like(row).cumsum(0) - 1


def _moments(by_cell: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    share = within / within.sum(1, keepdim=True).clamp_min(1)
    mean = share @ by_cell
    return mean, share @ by_cell.square() - mean.square()


def _pairs(edges: Tensor) -> Tensor:
    """float32 [C, R, E, N] → [C + 1, R, E, E]: how strongly a cell rises at one and falls at the other."""
    rises, falls = edges.clamp_min(0), (-edges).clamp_min(0)
    # The floor is taken off both edges, which is the same and much less than off every pair.
    high_rises, high_falls = (rises - _OF_ONE).clamp_min(0), (falls - _OF_ONE).clamp_min(0)
    of_each = [_weaker(up, down).mean(3) for up, down in zip(high_rises, high_falls, strict=True)]
    weaker = [_weaker(up, down) for up, down in zip(rises, falls, strict=True)]
    of_all = sum(weaker[1:], weaker[0]) / len(weaker)
    return torch.stack([*of_each, (of_all - _OF_ALL).clamp_min(0).mean(3)])


def _weaker(rises: Tensor, falls: Tensor) -> Tensor:
    """float32 [R, E, N], twice → [R, E, E, N]: of each first edge and each second one the weaker."""
    return torch.minimum(rises[:, :, None], falls[:, None])


def _between(pairs: Tensor) -> Tensor:
    """float32 [..., T + 1, T + 1], of a first and a second edge → [..., T]: the strongest about a frame."""
    edges = _count(pairs[0, 0, 0, 0])
    strongest = pairs * (edges[None] - edges[:, None] >= _SHORTEST)
    # A running maximum does not export; shifted by ever twice as far it is one of 128 frames.
    for doubling in range(_DOUBLINGS):
        shift = 2**doubling
        strongest = torch.maximum(strongest, F.pad(strongest, (0, 0, shift, 0))[..., :-shift, :])
        strongest = torch.maximum(strongest, F.pad(strongest, (0, shift))[..., shift:])
    # Frame t lies behind the edge t and before the edge t + 1.
    return torch.diagonal(strongest[..., :-1, 1:], dim1=-2, dim2=-1)

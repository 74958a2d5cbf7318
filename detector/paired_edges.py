"""Where a region changes, and later changes back: what the ends of a forged stretch leave in its frames.

Seen in the traces of cells over time (`detector.cell_traces`). A codec's moods change all cells for a frame
or two and a scene changes them slowly; a forged region changes few, at once, and later back.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from detector.cell_traces import CELLS, TRACES

REACHES = (8, 4)
"""frames before and behind a frame that are held against each other"""
EDGES_WIDTH = len(REACHES) * 3 * (TRACES + 1)
_NOISE = 0.03
"""of a trace, beneath what the frames themselves show"""
_OF_ONE, _OF_ALL = 2.0, 1.5
"""deviations beneath which two edges are none: in one trace, and in the mean over traces"""
_SHORTEST = 6
"""frames between two edges"""
_DOUBLINGS = 10


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
    found = []
    for reach in REACHES:
        rising = _pairs(_edges(by_cell, reach))
        # A region that falls is a pair the other way round in time.
        both = [torch.log1p(_between(pairs)) for pairs in (rising, rising.transpose(1, 2))]
        found += [*both, (both[0] - both[1]).abs()]
    return torch.cat(found).T


def _edges(by_cell: Tensor, reach: int) -> Tensor:
    """float32 [C, T, N] → [C, T + 1, N]: of frame t beside those before it; 0 at both ends of the clip."""
    # How far each frame lies behind each edge.
    frames = _count(by_cell[0, :, 0])
    behind = frames[None] - F.pad(frames + 1, (1, 0))[:, None]
    before_it = ((behind < 0) & (behind >= -reach)).float()
    after_it = ((behind >= 0) & (behind < reach)).float()
    (mean_before, spread_before), (mean_after, spread_after) = (
        _moments(by_cell, within) for within in (before_it, after_it)
    )
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
    """float32 [C, E, N] → [C + 1, E, E]: how strongly a cell rises at one and falls at the other."""
    rises, falls = edges.clamp_min(0), (-edges).clamp_min(0)
    total = torch.zeros_like(edges[0][:, None])
    found = []
    for up, down in zip(rises.unbind(0), falls.unbind(0), strict=True):
        weaker = torch.minimum(up[:, None], down[None])
        found.append((weaker - _OF_ONE).clamp_min(0).mean(2))
        total = total + weaker
    found.append((total / len(found) - _OF_ALL).clamp_min(0).mean(2))
    return torch.stack(found)


def _between(pairs: Tensor) -> Tensor:
    """float32 [C, T + 1, T + 1], of a first and a second edge → [C, T]: the strongest pair about a frame."""
    edges = _count(pairs[0, 0])
    strongest = pairs * (edges[None] - edges[:, None] >= _SHORTEST)
    # A running maximum does not export; shifted by ever twice as far it is one of 1,024 frames.
    for doubling in range(_DOUBLINGS):
        shift = 2**doubling
        strongest = torch.maximum(strongest, F.pad(strongest, (0, 0, shift, 0))[:, :-shift])
        strongest = torch.maximum(strongest, F.pad(strongest, (0, shift))[:, :, shift:])
    # Frame t lies behind the edge t and before the edge t + 1.
    return torch.diagonal(strongest[:, :-1, 1:], dim1=1, dim2=2)

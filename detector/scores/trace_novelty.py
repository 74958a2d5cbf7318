"""Trace novelty: the novelty in each group of features that sees one kind of trace, on average.

s(x) = mean over g of s_g(x), with s_g the novelty (`detector/scores/novelty.py`) in the columns of group g
alone: the statistics of residuals, the spectrum, how evenly noise lies, and the detail along edges. A forgery
that disturbs one of these is drowned in a distance over all features.
"""

import torch

from detector.network import NetworkOutput
from detector.reference import Reference
from detector.scores.neighbours import nearest, own_distance
from detector.scores.score import Score


def fit(reference: Reference | None) -> Score | None:
    """Measure the reference set's own distances in each group."""
    if reference is None:
        return None
    widths = [int(width) for width in reference.trace_widths]
    mean = torch.from_numpy(reference.mean).float()
    whitening = torch.from_numpy(reference.trace_whitening).float()
    groups = torch.split(torch.from_numpy(reference.traces).float(), widths, 1)
    known = [(group, own_distance(group)) for group in groups]

    def score(output: NetworkOutput) -> torch.Tensor:
        traced = torch.split((output.features - mean) @ whitening, widths, 1)
        found = [nearest(rows, *of_group).novelty for rows, of_group in zip(traced, known, strict=True)]
        return torch.stack(found).mean(0)

    return score

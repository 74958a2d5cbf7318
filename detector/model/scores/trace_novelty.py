"""Trace novelty: the novelty in each group of features that sees one kind of trace, on average.

s(x) = mean over g of s_g(x), with s_g the novelty (`novelty.py`) in the columns of group g
alone: the statistics of residuals, the spectrum, how evenly noise lies, and the detail along edges. A forgery
that disturbs one of these is drowned in a distance over all features.
"""

import torch

from detector.model.scores.neighbours import nearest, own_distance, own_novelty
from detector.model.scores.score import NetworkOutput, Score
from detector.release.reference import Reference


def fit(reference: Reference | None) -> Score | None:
    """Measure the reference set's own distances in each group."""
    if reference is None:
        return None
    mean = torch.from_numpy(reference.mean).float()
    whitening = torch.from_numpy(reference.trace_whitening).float()
    known = [(group, own_distance(group)) for group in _groups(reference)]
    widths = [group.shape[1] for group, _ in known]

    def score(output: NetworkOutput) -> torch.Tensor:
        traced = torch.split((output.features - mean) @ whitening, widths, 1)
        found = [nearest(rows, *of_group).novelty for rows, of_group in zip(traced, known, strict=True)]
        return torch.stack(found).mean(0)

    return score


def own(reference: Reference) -> torch.Tensor:
    """Return the score of each exemplar among all others, float32 [R]."""
    return torch.stack([own_novelty(group) for group in _groups(reference)]).mean(0)


def _groups(reference: Reference) -> tuple[torch.Tensor, ...]:
    widths = [int(width) for width in reference.trace_widths]
    return torch.split(torch.from_numpy(reference.traces).float(), widths, 1)

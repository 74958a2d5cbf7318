"""Novelty: the distance to the reference set in forensic features, in units of the set's own distances.

s(x) = mean_j |w(x) - w_j| / mean_j d_j over the 5 nearest w_j of the reference set, with w the forensic
features whitened by their within-class covariance and d_j the mean distance of w_j to its own 5 nearest:
about 1 among familiar media. The simplest local outlier factor (Breunig et al. 2000, "LOF: identifying
density-based local outliers"); `detector/model/scores/neighbours.py` has it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from detector.model.scores.neighbours import Nearest, own_novelty, search_of
from detector.model.scores.score import Score
from detector.release.reference import Reference


def search(reference: Reference) -> Callable[[Tensor], Nearest]:
    """Return the search that the novelty is made of, of raw forensic features float32 [M, F].

    What it finds is the evidence that a verdict names.
    """
    return search_of(reference.mean, reference.whitening, reference.features)


def fit(reference: Reference | None) -> Score | None:
    """Measure the reference set's own distances."""
    if reference is None:
        return None
    found = search(reference)
    return lambda output: found(output.features).novelty


def own(reference: Reference) -> Tensor:
    """Return the score of each exemplar among all others, float32 [R]."""
    return own_novelty(torch.from_numpy(reference.features).float())

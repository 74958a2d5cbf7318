"""Embedding novelty: the novelty in what the network's head reads, instead of in forensic features.

s(x) = mean_j |v(x) - v_j| / mean_j d_j over the 5 nearest v_j of the reference set, with v the embedding
whitened by its within-class covariance and d_j the mean distance of v_j to its own 5 nearest. The same local
outlier factor as `novelty.py`; Sun et al. 2022, "Out-of-distribution detection with deep
nearest neighbors", take the bare distance in an embedding of length 1.
"""

import torch
from torch import Tensor

from detector.model.scores.neighbours import own_novelty, search_of
from detector.model.scores.score import Score
from detector.release.reference import Reference


def fit(reference: Reference | None) -> Score | None:
    """Measure the reference set's own distances."""
    if reference is None:
        return None
    found = search_of(reference.embedding_mean, reference.embedding_whitening, reference.embeddings)
    return lambda output: found(output.embedding).novelty


def own(reference: Reference) -> Tensor:
    """Return the score of each exemplar among all others, float32 [R]."""
    return own_novelty(torch.from_numpy(reference.embeddings).float())

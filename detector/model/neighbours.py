"""The nearest rows of a reference set: exact, in pure torch functions that export to ONNX."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NEIGHBOURS = 5


class Nearest(NamedTuple):
    """The nearest reference rows of M rows, nearest first."""

    novelty: Tensor
    """float32 [M]: their mean distance over the mean of their own distances"""
    indices: Tensor
    """int64 [M, n]"""
    distances: Tensor
    """float32 [M, n], Euclidean"""


def nearest(rows: Tensor, reference: Tensor, own: Tensor, neighbours: int = NEIGHBOURS) -> Nearest:
    """Find how far each row is from its nearest reference rows, next to how far those are from theirs.

    rows: float32 [M, F]; reference: float32 [R, F], in the same coordinates; own: float32 [R], what
    `own_distance` made of it. The novelty is about 1 among familiar media and higher farther off. Raises
    ValueError where R < neighbours.

    The ratio is the simplest form of the local outlier factor (Breunig et al. 2000, "LOF: identifying
    density-based local outliers"). A bare distance is larger in a class with few exemplars or a wide
    spread, so that one threshold for all classes lets most unknowns pass or turns that class away.
    """
    index, distance = nearest_rows(rows, reference, neighbours)
    return Nearest(distance.mean(1) / own[index].mean(1), index, distance)


def own_distance(reference: Tensor, neighbours: int = NEIGHBOURS) -> Tensor:
    """Return each reference row's mean distance to its nearest others, float32 [R], from [R, F].

    At least a fifth of the median: near-duplicates among the exemplars must not make their surroundings
    look empty. Raises ValueError where R <= neighbours. Not for the exported graph.
    """
    # The nearest row is the row itself, at a distance of about 0.
    own = nearest_rows(reference, reference, neighbours + 1)[1][:, 1:].mean(1)
    return own.clamp_min(0.2 * float(own.median())).clamp_min(1e-6)


def own_novelty(reference: Tensor, neighbours: int = NEIGHBOURS) -> Tensor:
    """Return each reference row's novelty among all others, float32 [R], from [R, F].

    Raises ValueError where R <= neighbours. Not for the exported graph.
    """
    index, distance = nearest_rows(reference, reference, neighbours + 1)
    return distance[:, 1:].mean(1) / own_distance(reference, neighbours)[index[:, 1:]].mean(1)


def search_of(
    mean: NDArray[np.float32], whitening: NDArray[np.float32], reference: NDArray[np.float32]
) -> Callable[[Tensor], Nearest]:
    """Return `nearest` of raw rows float32 [M, F], whitened as (x - mean) @ whitening.

    mean [F] and whitening [F, W] are what the reference rows, float32 [R, W], were whitened by.
    """
    centre, matrix, known = (torch.from_numpy(part).float() for part in (mean, whitening, reference))
    own = own_distance(known)
    return lambda raw: nearest((raw - centre) @ matrix, known, own)


def nearest_rows(rows: Tensor, reference: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the places int64 [M, count] of each row's nearest reference rows, and their distances, float32.

    rows: float32 [M, F]; reference: float32 [R, F]; nearest first. Raises ValueError where R < count.
    """
    if reference.shape[0] < count:
        raise ValueError(f"a reference of {reference.shape[0]} rows cannot give {count} neighbours")
    # |a - b|^2 = |a|^2 + |b|^2 - 2ab is one matrix product, and cdist does not export everywhere. Whitening
    # within classes can throw classes hundreds of units apart: single precision then keeps no digit of a
    # distance of ten, and two runs of one network would not find the same neighbours.
    a, b = rows.double(), reference.double()
    # Runtimes are twice as quick where the many rows come first, and slower at a product that is scaled.
    squared = a.square().sum(1, keepdim=True) + b.square().sum(1) - ((2 * b) @ a.T).T
    least, index = torch.topk(squared, count, dim=1, largest=False, sorted=True)
    return index, least.clamp_min(0).sqrt().float()

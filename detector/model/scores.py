"""The gate's scores of a network's output: their formulas, weights and fusion.

Higher means less familiar. To add a score is a function `Fit` and a line in `SCORES`. The search for the
nearest rows of a reference set is exact, in torch functions that export to ONNX.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detector.release.artifact import Reference
from detector.release.manifest import GateParameters

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


class NetworkOutput(NamedTuple):
    """The network's output for M pools of crops, over K known classes (class 0 is real)."""

    logits: Tensor
    """float32 [M, K]"""
    pseudo_logit: Tensor
    """float32 [M]: the class of forgeries of no known family"""
    embedding: Tensor
    """float32 [M, D]: what the head reads"""
    features: Tensor
    """float32 [M, F]: the raw forensic features, pooled; F is 0 where the architecture has none"""


Score = Callable[[NetworkOutput], Tensor]
"""The scores of M rows, float32 [M]; higher means less familiar. Pure torch, on the CPU."""

Fit = Callable[[Reference | None], Score | None]
"""Makes a score from the reference set, or None where it needs one and there is none. Raises ValueError
where the set is too small."""


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the free energy of each row of logits [M, K], [M], in nats.

    E(x) = -T * log sum_c exp(f(x)_c / T), f the logits of the known classes. Liu et al. 2020, "Energy-based
    out-of-distribution detection", eq. 4; T = 1 there and in the gate. pytorch-ood's EnergyBased agrees.
    """
    return -temperature * torch.logsumexp(logits / temperature, dim=-1)


def fit_pseudo(_reference: Reference | None) -> Score:
    """The log odds of the class of pseudo-forgeries against all known classes, in nats.

    s(x) = f_(K+1)(x) - log sum_(c <= K) exp(f_c(x)). It says something only of a network that was trained
    with pseudo-forgeries as a K+1st class (updater/outliers).
    """
    return lambda output: output.pseudo_logit - torch.logsumexp(output.logits, dim=-1)


def search(reference: Reference) -> Callable[[Tensor], Nearest]:
    """Return the search that the novelty is made of, of raw forensic features float32 [M, F].

    What it finds is the evidence that a verdict names.
    """
    return search_of(reference.mean, reference.whitening, reference.features)


def fit_novelty(reference: Reference | None) -> Score | None:
    """The distance to the reference set in forensic features, in units of the set's own distances.

    s(x) = mean_j |w(x) - w_j| / mean_j d_j over the 5 nearest w_j of the reference set, with w the forensic
    features whitened by their within-class covariance and d_j the mean distance of w_j to its own 5 nearest:
    about 1 among familiar media. The simplest local outlier factor (`detector.model.scores.nearest`).
    """
    if reference is None:
        return None
    near = search(reference)
    return lambda output: near(output.features).novelty


def fit_embedding_novelty(reference: Reference | None) -> Score | None:
    """The novelty of the head's input: the embedding, whitened by its within-class covariance.

    Sun et al. 2022, "Out-of-distribution detection with deep nearest neighbors", take the bare distance in
    an embedding of length 1.
    """
    if reference is None:
        return None
    near = search_of(reference.embedding_mean, reference.embedding_whitening, reference.embeddings)
    return lambda output: near(output.embedding).novelty


def fit_trace_novelty(reference: Reference | None) -> Score | None:
    """The mean novelty over the groups of features that each see one kind of trace.

    The statistics of residuals, the spectrum, how evenly noise lies, and the detail along edges. A forgery
    that disturbs one of these is drowned in a distance over all features.
    """
    if reference is None:
        return None
    mean = torch.from_numpy(reference.mean).float()
    whitening = torch.from_numpy(reference.trace_whitening).float()
    widths = reference.trace_widths.tolist()
    groups = torch.split(torch.from_numpy(reference.traces).float(), widths, 1)
    known = [(group, own_distance(group)) for group in groups]

    def score(output: NetworkOutput) -> Tensor:
        traced = torch.split((output.features - mean) @ whitening, widths, 1)
        novelties = [nearest(rows, *of_group).novelty for rows, of_group in zip(traced, known, strict=True)]
        return torch.stack(novelties).mean(0)

    return score


def surprise(standard: Tensor, real: Tensor) -> Tensor:
    """Return float32 [M] evidence of forgery, in units of reals, as far as the network does not say so.

    standard: [M], 0 for the median real; real: how probably each item is real by the network, [M]. What is
    above 0 counts as far as the network calls the item real: a forgery of a known family is no surprise.
    """
    return standard.clamp_max(0) + real * standard.clamp_min(0)


_MOST_REAL = -2.0
"""What lies further on the side of reals than reals do is no more familiar than they are."""


def fit_discriminant(reference: Reference | None) -> Score | None:
    """How far linear discriminants take an item for a forgery of any kind: the `surprise` in it.

    s(x) = min(max(z, -2), 0) + P(real) max(z, 0), with z(x) = w(x) . (m_f - m_r) in units of the reference
    set's reals: their median is 0, their 84 % quantile 1. w are the forensic features whitened by their
    within-class covariance, m_r is the mean of the classes of reals and m_f that of the families: linear
    discriminants (Fisher 1936, "The use of multiple measurements in taxonomic problems"; the covariance is
    shrunk). A distance cannot tell a forgery that looks more ordinary than its source's reals; what the known
    families have in common can.
    """
    if reference is None or reference.is_forged.all() or not reference.is_forged.any():
        return None
    families = np.array(reference.families)
    names = np.unique(families)
    means = np.stack([reference.features[families == name].mean(0) for name in names])
    forged = np.array([reference.is_forged[families == name][0] for name in names])
    direction = means[forged].mean(0) - means[~forged].mean(0)
    median, high = np.quantile(reference.features[~reference.is_forged] @ direction, [0.5, 0.84])
    towards = torch.from_numpy(reference.whitening @ direction).float()
    centre = torch.from_numpy(reference.mean).float()

    def score(output: NetworkOutput) -> Tensor:
        z = ((output.features - centre) @ towards - float(median)) / max(float(high - median), 1e-6)
        return surprise(z.clamp_min(_MOST_REAL), torch.softmax(output.logits, -1)[:, 0])

    return score


@dataclass(frozen=True)
class ScoreEntry:
    """A score as calibration takes it into a new gate."""

    fit: Fit
    weight: float
    standard: bool = False
    """whether it is in units of reals already, and so a term as it is"""


SCORES: dict[str, ScoreEntry] = {
    "energy": ScoreEntry(lambda _: lambda output: energy(output.logits), weight=1.0),
    "pseudo": ScoreEntry(fit_pseudo, weight=1.0),
    "novelty": ScoreEntry(fit_novelty, weight=2.0),
    "embedding_novelty": ScoreEntry(fit_embedding_novelty, weight=2.0),
    "trace_novelty": ScoreEntry(fit_trace_novelty, weight=3.0),
    "discriminant": ScoreEntry(fit_discriminant, weight=2.0, standard=True),
}
"""The scores of the gate by name."""


def fit_scores(reference: Reference | None) -> dict[str, Score]:
    """Return every score that can be made with this reference set, by name, in the table's order."""
    made = {name: entry.fit(reference) for name, entry in SCORES.items()}
    return {name: score for name, score in made.items() if score is not None}


def fuse_scores(scores: Mapping[str, Tensor], gate: GateParameters) -> Tensor:
    """Return the sum of the gate's terms, float32 [M]: weight * clip((s - median) / scale).

    scores: float32 [M] of every term of the gate, by its name; more are left alone. Raises KeyError where
    one is missing.
    """
    terms = (
        term.weight * ((scores[name] - term.median) / term.scale).clamp(-gate.clip, gate.clip)
        for name, term in gate.terms.items()
    )
    return reduce(add, terms)

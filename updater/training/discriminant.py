"""The learner of the stream: linear discriminants over frozen features, solved from sums of items.

Nothing is trained by steps. An update adds the sums of its items to those that the release carries, and
solves. How far the covariance is shrunk towards a sphere, and the temperature of the logits, are chosen by
leaving whole sources out: what is asked of a detector is media of a source that it has not seen.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, logsumexp
from torch import Tensor

from detector.model.network import SCALED_CLIP, Network
from updater.data.training_data import LabelledCrops
from updater.measures import balanced_weights
from updater.training.crop_rows import item_features
from updater.training.step import Step, TrainedModel, is_real
from updater.training.sums import Statistics, StatisticsError, on_grid, statistics_of, sums_of

SHRINKAGES = (0.01, 0.03, 0.1, 0.3)
TEMPERATURES = tuple(2.0 ** (k / 2) for k in range(-2, 15))
LEAST_SOURCES = 3
"""of reals, or of forgeries, of which some can be left out"""
_FOLDS = 8
_USUAL = (0.1, 4.0)
"""shrinkage and temperature where there is nothing to choose them by"""
_LEAST_VARIANCE = 1e-3
"""of all features on average, in the units of release 0: equal pictures have none, and would divide by it"""


@dataclass(frozen=True)
class Discriminants:
    """Logits of K classes: rows [n, D] @ weight.T + bias."""

    weight: NDArray[np.float64]
    """[K, D]"""
    bias: NDArray[np.float64]
    """[K]"""


class Spread:
    """The covariance of sums, ready to be shrunk by any share: decomposed once."""

    def __init__(self, statistics: Statistics) -> None:
        """Raises StatisticsError as `Statistics.covariance`."""
        covariance, _ = statistics.covariance()
        self._values, self._vectors = np.linalg.eigh(covariance)
        self._values = self._values.clip(min=0)
        self._mean = max(float(self._values.mean()), _LEAST_VARIANCE)

    def discriminants(
        self, means: NDArray[np.float64], real: NDArray[np.bool_], shrinkage: float, temperature: float
    ) -> Discriminants:
        """Return the discriminants of classes with these means, float64 [K, D].

        real: which classes are of reals, bool [K]: these together are as probable beforehand as all others.
        """
        values = (1 - shrinkage) * self._values + shrinkage * self._mean
        weight: NDArray[np.float64] = (means @ self._vectors / values) @ self._vectors.T / temperature
        return Discriminants(weight, log_priors(real) - 0.5 * (weight * means).sum(1))


def log_priors(real: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return how probable each class is beforehand, logarithms, float64 [K], from which are of reals."""
    sides = 2 if 0 < real.sum() < len(real) else 1
    return np.asarray(-np.log(sides * np.where(real, real.sum(), (~real).sum())))


def choose_shrinkage(
    rows: NDArray[np.float64], items: LabelledCrops, statistics: Statistics
) -> tuple[float, float]:
    """Return the shrinkage and the temperature at which left-out sources have the least cross-entropy.

    rows: float64 [n, D], of the items, which are among what the sums are of. Where fewer than three sources
    have reals, or forgeries, groups are left out: of a family of one source no other says what it looks like.
    Each side of a source weighs the same. Where nothing can be left out: .1 and 4.
    """
    fake = ~np.array([is_real(name) for name in items.families])
    losses = np.zeros((len(SHRINKAGES), len(TEMPERATURES)))
    whole = min(len(set(np.array(items.sources)[side])) for side in (fake, ~fake)) >= LEAST_SOURCES
    for out, spread, means, real in remainders(rows, items, statistics, whole):
        of_source = [f"{source}/{side}" for source, side in zip(items.sources, fake, strict=True)]
        weight = balanced_weights(np.array(of_source)[out])
        for s, shrinkage in enumerate(SHRINKAGES):
            head = spread.discriminants(means, real, shrinkage, 1.0)
            priors = log_priors(real)
            raw = rows[out] @ head.weight.T + head.bias - priors
            for t, temperature in enumerate(TEMPERATURES):
                odds = fake_odds(raw / temperature + priors, real)
                losses[s, t] += weight @ -np.log(np.maximum(expit(np.where(fake[out], odds, -odds)), 1e-12))
    if not losses.any():
        return _USUAL
    s, t = divmod(int(losses.argmin()), len(TEMPERATURES))
    return SHRINKAGES[s], TEMPERATURES[t]


def remainders(
    rows: NDArray[np.float64], items: LabelledCrops, statistics: Statistics, whole: bool = True
) -> Iterator[tuple[NDArray[np.bool_], Spread, NDArray[np.float64], NDArray[np.bool_]]]:
    """Leave items out in turn, as `folds` says, of sums that they are among.

    Yields which are out, bool [n], and of the others the covariance, the means of their K classes, [K, D],
    and which of these are of reals, bool [K]. Where nothing can be solved from these, nothing is yielded.
    """
    families, sources = np.array(items.families), np.array(items.sources)
    for out in folds(items, whole):
        gone = sums_of(rows[out], families[out].tolist(), sources[out].tolist(), statistics.own)
        rest = statistics.minus(gone)
        real = np.array([is_real(name) for name in rest.families], bool)
        if 0 < real.sum() < len(real):
            with suppress(StatisticsError):
                yield out, Spread(rest), rest.means(rest.families), real


def fake_odds(logits: NDArray[np.float64], real: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the log odds of all forgeries' classes, float64 [n], from logits [n, K]; real: bool [K]."""
    return np.asarray(logsumexp(logits[:, ~real], axis=1) - logsumexp(logits[:, real], axis=1))


def folds(items: LabelledCrops, whole: bool = True) -> Iterator[NDArray[np.bool_]]:
    """Yield which items are left out together, bool [n]: whole sources if there are several, else groups."""
    by = items.sources if whole and len(set(items.sources)) > 1 else items.groups
    names, of = np.unique(np.array(by), return_inverse=True)
    if len(names) > 1:
        # Drawn, for neighbours by name are often of one kind.
        deal = np.random.default_rng(0).permutation(len(names)) % min(_FOLDS, len(names))
        for fold in range(deal.max() + 1):
            yield deal[of] == fold


def rows_of(network: Network, features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return raw features [n, F] in the coordinates that the network reads, float64 [n, D], on the grid.

    In double precision, so that the same features make the same rows.
    """
    mean, scale = (
        tensor.cpu().numpy().astype(np.float64) for tensor in (network.feature_mean, network.feature_scale)
    )
    scaled = ((features - mean) * scale).clip(-SCALED_CLIP, SCALED_CLIP)
    length = np.sqrt(np.square(scaled).mean(1, keepdims=True))
    return on_grid(scaled / np.maximum(length, 1.0))


def learn(step: Step) -> TrainedModel:
    """Add a step's items to the sums that the previous network was solved from, and solve anew.

    Items of the previous network's classes are added, too: each item is to come once. Of a previous network
    without sums only the scales go on, which stay for ever. Raises StatisticsError.
    """
    with torch.random.fork_rng(devices=[]):
        network = Network(step.architecture, len(step.classes)).to(step.device)
    features = item_features(network, step.train, step.device, partial(step.progress, "features"))
    before = None
    if step.previous is None:
        center(network, features, step.train.sources)
    else:
        old = step.previous.network
        network.feature_mean.copy_(old.feature_mean)
        network.feature_scale.copy_(old.feature_scale)
        kept = {name: value.cpu().numpy() for name, value in step.previous.kept.items()}
        before = statistics_of(kept) if kept else None
    rows = rows_of(network, features)
    statistics = sums_of(rows, step.train.families, step.train.sources)
    if before is not None:
        statistics = before.plus(statistics)
    solve(network, statistics, step.classes, *choose_shrinkage(rows, step.train, statistics))
    return TrainedModel(network.eval(), step.classes, tensors_of(statistics))


def tensors_of(statistics: Statistics) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in statistics.tensors().items()}


def center(network: Network, features: NDArray[np.float32], sources: Sequence[str]) -> None:
    """Set the scales in which a network reads features: mean 0, deviation 1, each source the same weight."""
    weight = balanced_weights(np.array(sources))
    mean = weight @ features.astype(np.float64)
    deviation = np.sqrt(weight @ np.square(features - mean))
    # Of a feature that is the same in all items nothing is left to divide by.
    scale = np.where(deviation > 1e-6 * np.maximum(1, np.abs(mean)), 1 / np.maximum(deviation, 1e-12), 0.0)
    network.feature_mean.copy_(torch.from_numpy(mean))
    network.feature_scale.copy_(torch.from_numpy(scale))


def solve(
    network: Network, statistics: Statistics, classes: Sequence[str], shrinkage: float, temperature: float
) -> None:
    """Set a network's head to the discriminants of these classes. Raises StatisticsError."""
    if lacking := set(classes) - set(statistics.families):
        raise StatisticsError(f"no item of {min(lacking)} is in the sums: label some")
    real = np.array([is_real(name) for name in classes])
    means = statistics.means(classes)
    head = Spread(statistics).discriminants(means, real, shrinkage, temperature)
    with torch.no_grad():
        for name, values in (("weight", head.weight), ("bias", head.bias)):
            network.head.get_parameter(name).copy_(torch.from_numpy(values))
            network.pseudo_head.get_parameter(name).zero_()

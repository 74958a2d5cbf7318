"""Items with what the network says of them, from which sources or families are left out; and first sight."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

from detector.model.network import SCALED_CLIP, Network
from detector.model.scores import NetworkOutput
from detector.release.manifest import FirstSight
from updater.candidate.calibrate import reals
from updater.candidate.gate_inputs import output_of
from updater.data.training_data import LabelledCrops
from updater.measures import balanced_weights, weighted_quantile
from updater.progress import Progress
from updater.training.discriminant import Discriminants, chosen, fake_odds, remainders, rows_of
from updater.training.step import is_real
from updater.training.sums import Statistics, on_grid, sums_of

LEAST_SOURCES = 3
"""of reals, of which some can be left out"""
KNOWN_REALS = 5
"""reals of a source among the training items, from which they are known"""


@dataclass(frozen=True)
class Part:
    """n items, and what the network says of them."""

    items: LabelledCrops
    output: NetworkOutput
    rows: NDArray[np.float64]
    """what a head reads, [n, D], on the grid"""

    def take(self, chosen: NDArray[np.bool_]) -> "Part":
        """Return these items, bool [n]."""
        at = np.flatnonzero(chosen)
        output = NetworkOutput(*(one[torch.from_numpy(at)] for one in self.output))
        return Part(self.items.take(at), output, self.rows[at])

    def solved(self, discriminants: Discriminants) -> NetworkOutput:
        """Return the output with other logits."""
        logits = self.rows @ discriminants.weight.T + discriminants.bias
        return self.output._replace(logits=torch.from_numpy(logits).float())


def part_of(network: Network, items: LabelledCrops, device: torch.device, progress: Progress) -> Part:
    """Return items with what a network says of them."""
    output = output_of(network, items, device, "left out", progress)
    if network.architecture.frozen:
        return Part(items, output, rows_of(network, output.features.numpy()))
    return Part(items, output, on_grid(output.embedding.numpy().clip(-SCALED_CLIP, SCALED_CLIP)))


def first_sight(
    train: Part,
    calibration: Part,
    foreign: Statistics | None,
    live: FirstSight | None,
    lost: float,
) -> FirstSight | None:
    """Return what sources that are new to a candidate are judged by; None where too few are known.

    train, calibration: its items, with what its network says of them. foreign: sums of what no memory holds.
    Sources are left out in turn, with their sums. The share `lost` of their reals lies above the threshold,
    each source weighing the same. live: what the live release has, which
    stays where too few sources are known here.
    """
    names, counts = np.unique(
        [s for s, f in zip(train.items.sources, train.items.families, strict=True) if is_real(f) and s],
        return_counts=True,
    )
    known = {str(name) for name, count in zip(names, counts, strict=True) if count >= KNOWN_REALS}
    known |= set() if live is None else set(live.sources)
    if len(names) < LEAST_SOURCES:
        return live and live.model_copy(update={"sources": tuple(sorted(known))})
    total = sums_of(train.rows, train.items.families, train.items.sources)
    total = total if foreign is None else total.plus(foreign)
    shrunk = chosen(train.rows, train.items, total)
    fake: list[NDArray[np.float64]] = []
    sources: list[NDArray[np.str_]] = []
    for out, spread, means, real in remainders(train.rows, train.items, total):
        solved = spread.discriminants(means, real, *shrunk)
        gone = np.isin(np.array(calibration.items.sources), np.array(train.items.sources)[out])
        for part, some in ((train, out), (calibration, gone)):
            mine = some & reals(part.items.families)
            fake.append(expit(fake_odds(part.rows[mine] @ solved.weight.T + solved.bias, real)))
            sources.append(np.array(part.items.sources)[mine])
    if not fake:
        return live
    scores, weights = np.concatenate(fake), balanced_weights(np.concatenate(sources))
    threshold = weighted_quantile(scores, weights, 1 - lost)
    return FirstSight(fake_threshold=min(threshold, 1.0), sources=tuple(sorted(known)))

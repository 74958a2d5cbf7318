"""From a trained localizer to what is served: how a picture's evidence counts, and the threshold of a cell.

Both come from pictures that were not trained on.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from detector.localizer import Localizer, LocalizerGraph, evidence
from updater.localizer.train import MaskedCrops, pseudo_forged
from updater.training_data import LabelledCrops

MARKED_SHARE = 0.02
"""a real picture counts as marked where more than this share of its cells is"""
MAX_REALS_MARKED = 0.05
_AIMED_AT = 0.03
"""what is asked of held-back reals: those of the stream are others"""


@dataclass(frozen=True)
class Calibrated:
    """A graph to export, and its threshold."""

    graph: LocalizerGraph
    threshold: float
    """a cell counts as forged from this on"""
    reals_marked: float
    """share of the held-back reals that are marked"""
    reals: int


def calibrate(
    network: Localizer,
    reals: LabelledCrops,
    known: MaskedCrops | None,
    *,
    without: frozenset[str] = frozenset(),
    seed: int = 0,
) -> Calibrated:
    """Calibrate a localizer on held-back reals, and on the forgeries of `known` or pseudo-forgeries of them.

    Raises ValueError where there are no reals.
    """
    if not len(reals):
        raise ValueError("a localizer's threshold needs held-back real pictures, and there are none")
    logits = [_logits(network, crops) for crops in _pictures(reals)]
    if known is not None:
        forged_at = [i for i, family in enumerate(known.items.families) if family != "real"]
        forged = list(_pictures(known.items.take(forged_at)))
    else:
        rng = np.random.default_rng([seed, 12])
        forged = [pseudo_forged(rng, crops, without)[0] for crops in _pictures(reals)]
    said = [_evidence(one) for one in logits]
    told = [_evidence(_logits(network, crops)) for crops in forged]
    fitted = LogisticRegression(class_weight="balanced").fit(
        np.array([*said, *told])[:, None], np.repeat([0, 1], [len(said), len(told)])
    )
    slope, offset = float(fitted.coef_[0, 0]), float(fitted.intercept_[0])
    maps = [
        1 / (1 + np.exp(-one)) / (1 + np.exp(-(slope * told + offset)))
        for one, told in zip(logits, said, strict=True)
    ]
    threshold = threshold_for(maps)
    marked = float(np.mean([(one >= threshold).mean() > MARKED_SHARE for one in maps]))
    return Calibrated(LocalizerGraph(network, slope, offset).eval(), threshold, marked, len(maps))


def threshold_for(maps: list[NDArray[np.float32]]) -> float:
    """Return the lowest threshold by which at most 3 % of real pictures' maps are marked, in 0.05..1."""
    marked_up_to = [np.sort(one.ravel())[::-1][int(MARKED_SHARE * one.size)] for one in maps]
    ordered = np.sort(marked_up_to)[::-1]
    first_allowed = ordered[min(int(_AIMED_AT * len(maps)), len(maps) - 1)]
    return float(np.clip(np.nextafter(first_allowed, np.float32(2)), 0.05, 1))


def _pictures(items: LabelledCrops) -> list[NDArray[np.uint8]]:
    return [
        np.asarray(items.crops[np.arange(first, end)])
        for first, end in zip(items.starts, items.starts[1:], strict=False)
    ]


def _logits(network: Localizer, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
    with torch.inference_mode():
        pixels = torch.from_numpy(crops).permute(0, 3, 1, 2).float()
        logits: NDArray[np.float32] = network(pixels, torch.zeros(len(crops), dtype=torch.int64)).numpy()
    return logits


def _evidence(logits: NDArray[np.float32]) -> float:
    return float(evidence(torch.from_numpy(logits), torch.zeros(len(logits), dtype=torch.int64))[0])

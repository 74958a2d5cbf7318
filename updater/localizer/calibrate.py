"""From a trained localizer to the served one: where a cell counts as forged, and a picture.

Both come from pictures that were not trained on, and how many reals are marked from others again. A picture's
crops are read when they are looked at; only what is said of their cells is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, logit

from detector.model.localizer import Localizer, LocalizerGraph, evidence
from detector.release.crop_graphs import CELLS
from updater.data.training_data import LabelledCrops
from updater.draws import SeedPurpose
from updater.localizer.train import MaskedCrops, pseudo_forged
from updater.progress import Steps, no_steps

THRESHOLD = 0.5
"""a cell counts as forged from this on, in every release: what is fitted is how a logit becomes that"""
FORGED_FROM = 0.1
"""a cell is forged where at least this share of it is, as ForgeryNet's figures have it"""
MARKED_SHARE = 0.02
"""a real picture counts as marked where more than this share of its cells is"""
ALLOWED = 0.03
"""share of the reals that may be marked; what is asked of others is 5 %"""
_CUTS = np.arange(-4, 3.01, 0.25)
_SLOPES = (1.0, 2.0, 4.0, 8.0)
_MOST_OFFSET = 50.0

Cells = NDArray[np.float32]


@dataclass(frozen=True)
class CellPrediction:
    """A localizer's output for one picture."""

    cells: Cells
    """logits, [N, h, w]"""
    evidence: float
    forged: NDArray[np.bool_] | None = None
    """[N, h, w]; None of a real picture"""


def calibrate(
    network: Localizer,
    reals: LabelledCrops,
    known: MaskedCrops | None,
    *,
    without: frozenset[str] = frozenset(),
    seed: int = 0,
    progress: Steps = no_steps,
) -> LocalizerGraph:
    """Fit the map from logits to probabilities: of held-back reals at most 3 % are marked at 0.5.

    Among what keeps to that it is what finds most of the forged regions, by their mean intersection over
    union: of the forgeries of `known`, or of pseudo-forgeries of the reals. Raises ValueError where there are
    no reals.
    """
    if not len(reals):
        raise ValueError("a localizer's threshold needs held-back real pictures, and there are none")
    forgeries = len(reals) if known is None else sum(family != "real" for family in known.items.families)
    total = len(reals) + forgeries

    def predict_and_report(crops: NDArray[np.uint8], forged: Cells | None, done: int) -> CellPrediction:
        predictions = _predict_cells(network, crops, forged)
        progress(done, total)
        return predictions

    real = [predict_and_report(crops, None, number) for number, crops in enumerate(_pictures(reals), 1)]
    forged = [
        predict_and_report(crops, cells, number)
        for number, (crops, cells) in enumerate(_forgeries(reals, known, without, seed), len(real) + 1)
    ]
    return LocalizerGraph(network, *fit_cut(real, forged)).eval()


def reals_marked(graph: LocalizerGraph, reals: LabelledCrops, progress: Steps = no_steps) -> float:
    """Return the share of real pictures with more than 2 % of their cells marked.

    They are to be others than those that the graph was trained and calibrated on. nan of none.
    """
    marked = []
    for number, crops in enumerate(_pictures(reals), 1):
        with torch.inference_mode():
            cells = graph(torch.from_numpy(crops), torch.zeros(len(crops), dtype=torch.int64))[CELLS]
        marked.append(float((cells >= THRESHOLD).double().mean()) > MARKED_SHARE)
        progress(number, len(reals))
    return float(np.mean(marked)) if marked else float("nan")


def fit_cut(reals: list[CellPrediction], forgeries: list[CellPrediction]) -> tuple[float, float, float]:
    """Return cut, slope and offset of a `LocalizerGraph`."""
    strongest = np.array([_strongest(real.cells) for real in reals])
    evidences = np.array([real.evidence for real in reals])
    cuts = []
    for cut in _CUTS:
        # How sure of the picture one must be for its strongest cells to be marked; never, if these are below.
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = logit(THRESHOLD / expit(strongest - cut))
        for slope in _SLOPES:
            marked_from = np.where(strongest > cut, needed - slope * evidences, np.inf)
            first_not_allowed = np.sort(marked_from)[int(ALLOWED * len(reals))]
            offset = float(min(first_not_allowed - 1e-3, _MOST_OFFSET))
            cuts.append((_iou(forgeries, float(cut), slope, offset), float(cut), slope, offset))
    _, cut, slope, offset = max(cuts)
    return cut, slope, offset


def _iou(forgeries: list[CellPrediction], cut: float, slope: float, offset: float) -> float:
    """Return the mean intersection over union of marked and forged cells; 0 of no forgery."""
    total = 0.0
    for forgery in forgeries:
        sure = float(expit(slope * forgery.evidence + offset))
        if sure <= THRESHOLD:
            continue
        marked = forgery.cells >= cut + logit(THRESHOLD / sure)
        total += float((marked & forgery.forged).sum() / max(1, int((marked | forgery.forged).sum())))
    return total / max(1, len(forgeries))


def _strongest(cells: Cells) -> float:
    """Return the logit that more than 2 % of a picture's cells must reach for it to be marked."""
    return float(np.sort(cells.ravel())[::-1][int(MARKED_SHARE * cells.size)])


def _forgeries(
    reals: LabelledCrops, known: MaskedCrops | None, without: frozenset[str], seed: int
) -> Iterator[tuple[NDArray[np.uint8], Cells]]:
    """Yield the crops of pictures, and how much of each cell is forged."""
    if known is None:
        rng = SeedPurpose.LOCALIZER_CALIBRATION.generator(seed)
        for crops in _pictures(reals):
            yield pseudo_forged(rng, crops, without)
        return
    for number, family in enumerate(known.items.families):
        if family != "real":
            rows = np.arange(known.items.starts[number], known.items.starts[number + 1])
            yield np.asarray(known.items.crops[rows]), known.cells[rows]


def _pictures(items: LabelledCrops) -> Iterator[NDArray[np.uint8]]:
    for first, end in zip(items.starts, items.starts[1:], strict=False):
        yield np.asarray(items.crops[np.arange(first, end)])


def _predict_cells(network: Localizer, crops: NDArray[np.uint8], forged: Cells | None) -> CellPrediction:
    of_picture = torch.zeros(len(crops), dtype=torch.int64)
    with torch.inference_mode():
        logits = network(torch.from_numpy(crops).permute(0, 3, 1, 2).float(), of_picture)
        picture_evidence = float(evidence(logits, of_picture)[0])
    return CellPrediction(logits.numpy(), picture_evidence, None if forged is None else forged >= FORGED_FROM)

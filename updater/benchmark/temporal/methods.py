"""The methods that find forged stretches, by name. To add one is to add it and a line.

`convolutions` is our own: dilated convolutions over deviations from the clip's median and paired edges of
cells. Its head and training are those of production: `detector.model.scanner`, `updater.scan.training`.

`frames` is the paper's frame method: He et al. 2021, "ForgeryNet", section 5.4 and appendix I. Each frame is
scored by itself, and is forged from a score of .25; runs of forged frames are taken with a tolerance of 1, 3,
5 and 7 real frames, at least 5 frames long, their score the mean. The paper scores frames by an image
network; ours is a perceptron on the forensic features of the frame's crop.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from detector.features.cell_traces import CELL_WIDTH
from detector.model.scanner import CLIPPED_AT
from detector.second_pass.scan_look import MOST, Segments, runs, stretches
from updater.benchmark.temporal.bmn import SMALL, bmn
from updater.benchmark.temporal.bsn import bsn
from updater.benchmark.temporal.method import Localization, Localizer, Method, Progress
from updater.scan.clips import ScannedClip
from updater.scan.training import train_scanner
from updater.training.fit import Descent, fit, in_epochs


def convolutions(clips: Sequence[ScannedClip], seed: int, progress: Progress) -> Localizer:
    """Train the head over time; see `updater.benchmark.temporal.method.Method`."""
    scanner = train_scanner(clips, seed, progress=progress)

    def localize(features: NDArray[np.float32]) -> Localization:
        with torch.inference_mode():
            scores = scanner(torch.from_numpy(features))["frame_score"].double().numpy()
        return Localization(scores, stretches(scores))

    return localize


FORGED_FROM = 0.25
TOLERANCES = (1, 3, 5, 7)
SHORTEST = 5
_HIDDEN = 64
_EPOCHS, _BATCH, _RATE, _DECAY = 20, 256, 1e-3, 1e-2


def frames(clips: Sequence[ScannedClip], seed: int, progress: Progress) -> Localizer:
    """Train the classifier of frames; see `updater.benchmark.temporal.method.Method`."""
    rows = torch.from_numpy(np.concatenate([clip.features[:, :-CELL_WIDTH] for clip in clips]))
    truth = torch.from_numpy(np.concatenate([clip.is_forged for clip in clips])).float()
    if not 0 < float(truth.mean()) < 1:
        raise ValueError("training needs forged frames and others")
    mean, deviation = rows.mean(0), rows.std(0).clamp_min(1e-6)

    def standard(features: torch.Tensor) -> torch.Tensor:
        return ((features - mean) / deviation).clamp(-CLIPPED_AT, CLIPPED_AT)

    rows = standard(rows)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(rows.shape[1], _HIDDEN), nn.ReLU(), nn.Dropout(0.2), nn.Linear(_HIDDEN, 1)
        )
        optimiser = torch.optim.AdamW(network.parameters(), _RATE, weight_decay=_DECAY)
        fit(
            network,
            in_epochs(lambda: torch.randperm(len(rows)), _BATCH, _EPOCHS),
            lambda chosen: F.binary_cross_entropy_with_logits(network(rows[chosen])[:, 0], truth[chosen]),
            Descent(optimiser, _EPOCHS * math.ceil(len(rows) / _BATCH)),
            progress=progress,
        )
    network.eval()

    def localize(features: NDArray[np.float32]) -> Localization:
        with torch.inference_mode():
            logits = network(standard(torch.from_numpy(features[:, :-CELL_WIDTH])))[:, 0]
        scores = logits.sigmoid().double().numpy()
        return Localization(scores, segments_of(scores))

    return localize


def segments_of(scores: NDArray[np.float64]) -> Segments:
    """Return the ten best runs of forged frames over all tolerances, each once; scores: [T] in 0..1."""
    pieces = {run for tolerance in TOLERANCES for run in runs(scores >= FORGED_FROM, tolerance, SHORTEST)}
    scored = sorted((-float(scores[first:end].mean()), first, end) for first, end in pieces)
    return np.array([(first, end, -negative) for negative, first, end in scored[:MOST]]).reshape(-1, 3)


METHODS: dict[str, Method] = {
    "convolutions": convolutions,
    "frames": frames,
    "bsn": bsn,
    "bmn": bmn,
    "bmn:small": partial(bmn, hidden=SMALL),
}

"""The methods that find forged stretches, by name. To add one is a file beside this and a line.

`convolutions` is our own: dilated convolutions over deviations from the clip's median and paired edges of
cells. Its head and training are those of production: `detector.model.scanner`, `updater.scan.training`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from detector.looks.scan_look import stretches
from updater.benchmark.temporal.bmn import HIDDEN, SMALL, with_hidden
from updater.benchmark.temporal.bsn import bsn
from updater.benchmark.temporal.frames import frames
from updater.benchmark.temporal.method import Answer, Localizer, Method, Progress
from updater.scan.clips import ScannedClip
from updater.scan.training import train_scanner


def convolutions(clips: Sequence[ScannedClip], seed: int, progress: Progress) -> Localizer:
    """Train the head over time; see `updater.benchmark.temporal.method.Method`."""
    scanner = train_scanner(clips, seed, progress=progress)

    def localize(features: NDArray[np.float32]) -> Answer:
        with torch.inference_mode():
            scores = scanner(torch.from_numpy(features))["frame_score"].double().numpy()
        return Answer(scores, stretches(scores))

    return localize


METHODS: dict[str, Method] = {
    "convolutions": convolutions,
    "frames": frames,
    "bsn": bsn,
    "bmn": with_hidden(HIDDEN),
    "bmn:small": with_hidden(SMALL),
}

"""A release's scanner in this process, on ONNX Runtime."""

from pathlib import Path

import numpy as np

from detector.release.artifact import SCANNER, Artifact
from detector.release.contract import CROPS, conform
from detector.release.scan_contract import FRAME_SCORE, ScanContract
from detector.release.tensors import ModelOutput, Request, TensorsError
from detector.serving.session import open_graph

BEFORE, FEATURES = "before", "features"
_PART = 4
"""crops at a time: more do not fit the processor's cache (96 at once took twice as long)"""


class ScanSession:
    """Scores the frames of a clip; pure, so the same input gives the same output."""

    def __init__(self, model: Path, contract: ScanContract, threads: int, gpu: int | None = None) -> None:
        """Load an ONNX file that keeps this contract. Raises TensorsError where it has other names."""
        self.contract = contract
        self._session = open_graph(model, {CROPS, BEFORE}, {FEATURES, FRAME_SCORE}, threads, gpu)
        (width,) = (one.shape[1] for one in self._session.get_inputs() if one.name == BEFORE)
        self._none = np.zeros((0, width), np.float32)

    def score(self, request: Request) -> ModelOutput:
        """Score the frames of one clip. Raises TensorsError where it is not as the contract says."""
        rows = conform(request, self.contract.inputs)
        if 0 in rows.values():
            raise TensorsError("nothing to scan: no crops")
        crops = request[CROPS]
        *parts, last = np.split(crops, range(_PART, len(crops), _PART))
        # The head looks at all pairs of frames: so it is shown them all once, and else those of a part alone.
        features = [self._session.run([FEATURES], {CROPS: part, BEFORE: self._none})[0] for part in parts]
        before = np.concatenate([self._none, *features])
        (scores,) = self._session.run([FRAME_SCORE], {CROPS: last, BEFORE: before})
        return {FRAME_SCORE: scores}


def open_scan_session(artifact: Artifact, threads: int, gpu: int | None = None) -> ScanSession | None:
    """Load a release's scanner; None where it has none. Raises TensorsError."""
    contract = artifact.manifest.scanner
    return None if contract is None else ScanSession(artifact.folder / SCANNER, contract, threads, gpu)

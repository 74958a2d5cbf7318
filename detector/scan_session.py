"""A release's scanner in this process, on ONNX Runtime."""

from pathlib import Path

import numpy as np

from detector.artifact import SCANNER, Artifact
from detector.contract import CROPS, conform
from detector.scan_contract import FRAME_SCORE, ScanContract
from detector.session import open_graph
from detector.tensors import ModelOutput, Request, TensorsError

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
        before, scores = self._none, np.zeros(0, np.float32)
        for first in range(0, len(request[CROPS]), _PART):
            feed = {CROPS: request[CROPS][first : first + _PART], BEFORE: before}
            features, scores = self._session.run([FEATURES, FRAME_SCORE], feed)
            before = np.concatenate([before, features])
        return {FRAME_SCORE: scores}


def open_scan_session(artifact: Artifact, threads: int, gpu: int | None = None) -> ScanSession | None:
    """Load a release's scanner; None where it has none. Raises TensorsError."""
    contract = artifact.manifest.scanner
    return None if contract is None else ScanSession(artifact.folder / SCANNER, contract, threads, gpu)

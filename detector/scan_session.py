"""A release's scanner in this process, on ONNX Runtime."""

from pathlib import Path

from detector.artifact import SCANNER, Artifact
from detector.contract import conform
from detector.scan_contract import FRAME_SCORE, ScanContract
from detector.session import open_graph
from detector.tensors import ModelOutput, Request, TensorsError


class ScanSession:
    """Scores the frames of a clip; pure, so the same input gives the same output."""

    def __init__(self, model: Path, contract: ScanContract, threads: int, gpu: int | None = None) -> None:
        """Load an ONNX file that keeps this contract. Raises TensorsError where it has other names."""
        self.contract = contract
        takes = {one.name for one in contract.inputs}
        self._session = open_graph(model, takes, {FRAME_SCORE}, threads, gpu)

    def score(self, request: Request) -> ModelOutput:
        """Score the frames of one clip. Raises TensorsError where it is not as the contract says."""
        rows = conform(request, self.contract.inputs)
        if 0 in rows.values():
            raise TensorsError("nothing to scan: no crops")
        (scores,) = self._session.run([FRAME_SCORE], dict(request))
        return {FRAME_SCORE: scores}


def open_scan_session(artifact: Artifact, threads: int, gpu: int | None = None) -> ScanSession | None:
    """Load a release's scanner; None where it has none. Raises TensorsError."""
    contract = artifact.manifest.scanner
    return None if contract is None else ScanSession(artifact.folder / SCANNER, contract, threads, gpu)

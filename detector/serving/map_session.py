"""A release's localizer in this process, on ONNX Runtime."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from detector.release.artifact import LOCALIZER, Artifact
from detector.release.contract import CROPS, conform
from detector.release.map_contract import CELLS, OF_PICTURE, MapContract
from detector.release.tensors import ModelOutput, Request, TensorsError
from detector.serving.session import open_graph


class MapSession:
    """Maps the crops of pictures; pure, so the same input gives the same output."""

    def __init__(self, model: Path, contract: MapContract, threads: int, gpu: int | None = None) -> None:
        """Load an ONNX file that keeps this contract. Raises TensorsError where it has other names."""
        self.contract = contract
        takes = {one.name for one in contract.inputs}
        self._session = open_graph(model, takes, {CELLS}, threads, gpu)

    def score(self, request: Request) -> ModelOutput:
        """Map the crops of a request, picture by picture.

        Raises TensorsError where it is not as the contract says.
        """
        rows = conform(request, self.contract.inputs)
        if 0 in rows.values():
            raise TensorsError("nothing to map: no crops")
        crops, of_picture = request[CROPS], request[OF_PICTURE]
        side = self.contract.crop_px // self.contract.cell_px
        cells = np.empty((len(crops), side, side), np.float32)
        for at in _pictures(of_picture):
            feed = {CROPS: np.ascontiguousarray(crops[at]), OF_PICTURE: of_picture[at]}
            (cells[at],) = self._session.run([CELLS], feed)
        return {CELLS: cells}


def open_map_session(artifact: Artifact, threads: int, gpu: int | None = None) -> MapSession | None:
    """Load a release's localizer; None where it has none. Raises TensorsError."""
    contract = artifact.manifest.localizer
    return None if contract is None else MapSession(artifact.folder / LOCALIZER, contract, threads, gpu)


def _pictures(of_picture: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for one in np.unique(of_picture):
        yield np.nonzero(of_picture == one)[0]

"""A localizer becomes an ONNX file, and is proven to say the same."""

from collections.abc import Sequence
from pathlib import Path

import torch

from detector.model.export import ExportError, run, write_onnx
from detector.model.localizer import LocalizerGraph
from detector.release.contract import ROWS, TensorSpec, conform
from detector.release.map_contract import (
    CELL_PX,
    CELLS,
    MAX_DIFFERENCE,
    OF_PICTURE,
    MapContract,
    map_difference,
    map_inputs,
)
from detector.release.tensors import Request
from detector.serving.map_session import MapSession


def export_localizer(
    graph: LocalizerGraph,
    crop_px: int,
    path: Path,
    requests: Sequence[Request],
    *,
    threshold: float,
    reals_marked: float,
    reals: int,
) -> MapContract:
    """Write the graph to path as ONNX, run both on every request, and return the contract that it keeps.

    Raises ValueError unless the requests have at least two sizes and one has several pictures, and
    ExportError when a cell differs by more than 2/255.
    """
    inputs = map_inputs(crop_px)
    sizes = {conform(request, inputs)[ROWS] for request in requests}
    if len(sizes) < 2 or max((len(set(one[OF_PICTURE].tolist())) for one in requests), default=0) < 2:
        raise ValueError("a proof needs requests of several sizes, one of them of several pictures")
    written = write_onnx(graph, inputs, path)
    contract = MapContract(
        crop_px=crop_px, threshold=threshold, reals_marked=reals_marked, reals=reals, export_difference=0
    )
    side = crop_px // CELL_PX
    if written != (TensorSpec(name=CELLS, dtype="float32", shape=(ROWS, side, side)),):
        raise ExportError(f"the localizer gives {', '.join(map(str, written))}")
    session = MapSession(path, contract, threads=torch.get_num_threads())
    worst = max(map_difference(session.score(one), run(graph, one)) for one in requests)
    if worst > MAX_DIFFERENCE:
        raise ExportError(f"the exported localizer is not the torch graph: a cell differs by {worst:.2g}")
    return contract.model_copy(update={"export_difference": worst})

"""A head over time becomes an ONNX file, with the features that it reads, and is proven to say the same."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from detector.model.export import ExportError, run, write_onnx
from detector.model.scanner import Scanner, ScannerGraph
from detector.release.contract import ROWS, TensorSpec, conform
from detector.release.scan_contract import (
    FRAME_SCORE,
    MAX_DIFFERENCE,
    ScanContract,
    scan_difference,
    scan_inputs,
)
from detector.release.tensors import Request
from detector.serving.scan_session import BEFORE, ScanSession


def export_scanner(
    scanner: Scanner,
    crop_px: int,
    path: Path,
    requests: Sequence[Request],
    *,
    threshold: float,
    reals_told: float,
    reals: int,
) -> ScanContract:
    """Write a scanner to path as ONNX, run both on every request, and return the contract that it keeps.

    requests: the crops of one clip each. Raises ValueError unless the clips are of several lengths, and
    ExportError when a frame's score differs by more than 2/255.
    """
    graph = ScannerGraph(scanner, crop_px)
    inputs = scan_inputs(crop_px)
    if len({conform(request, inputs)[ROWS] for request in requests}) < 2:
        raise ValueError("a proof needs clips of several lengths")
    contract = ScanContract(
        crop_px=crop_px, threshold=threshold, reals_told=reals_told, reals=reals, export_difference=0
    )
    none = np.zeros((0, graph.features.width), np.float32)
    before = TensorSpec(name=BEFORE, dtype="float32", shape=(BEFORE, graph.features.width))
    write_onnx(graph, (*inputs, before), path, longer={FRAME_SCORE: "frames"})
    session = ScanSession(path, contract, threads=torch.get_num_threads())
    worst = max(scan_difference(session.score(one), run(graph, {**one, BEFORE: none})) for one in requests)
    if worst > MAX_DIFFERENCE:
        raise ExportError(f"the exported scanner is not the torch graph: a frame differs by {worst:.2g}")
    return contract.model_copy(update={"export_difference": worst})

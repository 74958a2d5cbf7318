"""A torch graph becomes an ONNX file, and is proven to say the same."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from detector.graph import DetectorGraph
from detector.scored import OUTPUTS, Scored, beyond_tolerance, differences
from detector.session import Session

OPSET = 18

Batch = tuple[NDArray[np.uint8], NDArray[np.float32]]
"""crops uint8 (N, S, S, 3) and pooling float32 (M, N)."""


class ExportError(Exception):
    """The exported graph does not say what the torch graph says. Fatal: this candidate is not served."""


def export(graph: DetectorGraph, path: Path) -> None:
    """Write the graph to path as ONNX of opset 18, with N and M left open.

    By the exporter that traces: it takes half a second where the one built on torch.export takes
    ten, and the two files are equally right and fast. What tracing could get wrong, a size or a
    branch frozen at the example's, prove_equal finds.
    """
    graph = graph.cpu().eval()
    size = graph.network.architecture.crop_px
    crops = torch.randint(0, 256, (3, size, size, 3), dtype=torch.uint8)
    pooling = torch.full((2, 3), 1 / 3)
    axes = {"crops": {0: "crops"}, "pooling": {0: "rows", 1: "crops"}}
    axes |= {name: {0: "rows"} for name in OUTPUTS}
    with warnings.catch_warnings():
        # It warns that it is not the default, and that sizes which are constant here are constants.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            (crops, pooling),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=["crops", "pooling"],
            output_names=list(OUTPUTS),
            dynamic_axes=axes,
        )


def prove_equal(graph: DetectorGraph, path: Path, batches: Sequence[Batch]) -> dict[str, float]:
    """Run both on every batch; return the worst |a - b| / (1 + |b|) of each output.

    Raises ValueError unless the batches have at least two N and two M, and ExportError when an
    output is beyond detector.scored.TOLERANCE.
    """
    if min(len({len(crops) for crops, _ in batches}), len({len(pooling) for _, pooling in batches})) < 2:
        raise ValueError("a proof needs batches of several sizes, both in crops and in rows")
    session = Session(path, threads=torch.get_num_threads())
    worst: dict[str, float] = {}
    for crops, pooling in batches:
        for name, value in differences(session.score(crops, pooling), run(graph, crops, pooling)).items():
            worst[name] = max(value, worst.get(name, 0.0))
    if wrong := beyond_tolerance(worst):
        raise ExportError("the exported graph is not the torch graph: " + "; ".join(wrong))
    return worst


def run(graph: DetectorGraph, crops: NDArray[np.uint8], pooling: NDArray[np.float32]) -> Scored:
    """What the torch graph itself says of a batch."""
    graph = graph.cpu().eval()
    with torch.inference_mode():
        output = graph(torch.from_numpy(crops), torch.from_numpy(pooling))
    return Scored(**{name: getattr(output, name).numpy() for name in OUTPUTS})

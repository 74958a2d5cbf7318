"""The exported graph in this process, on ONNX Runtime."""

from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import structlog
from numpy.typing import NDArray

from detector.release.artifact import MODEL, Artifact
from detector.release.contract import ROWS, Contract, conform
from detector.release.tensors import ModelOutput, Request, TensorsError

_RUN_CROPS = 8
"""Most crops of one run of the graph: what larger ones write between two layers fits no cache. 32 crops
at once were seen to take a quarter to a third more processor time a crop, at 128 px and at 224 px."""

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

log = structlog.get_logger()


class Session:
    """Scores requests with one detector.onnx; pure, so the same input gives the same output."""

    def __init__(self, model: Path, contract: Contract, threads: int, gpu: int | None = None) -> None:
        """Load an ONNX file that keeps this contract, to run on `threads` CPU threads.

        gpu: the number of the GPU to run on, if ONNX Runtime can; else it says in one line that it runs on
        the CPU. Raises TensorsError where the file's inputs or outputs have other names.
        """
        self.contract = contract
        self._session = open_graph(
            model, {one.name for one in contract.inputs}, {one.name for one in contract.outputs}, threads, gpu
        )

    def score(self, request: Request) -> ModelOutput:
        """Score the rows of a request. Raises TensorsError where it is not as the contract says."""
        sizes = conform(request, self.contract.inputs)
        if 0 in sizes.values():
            raise TensorsError(f"nothing to score: {sizes}")
        names = [one.name for one in self.contract.outputs]
        poolings = [(one.shape[1], request[one.name]) for one in self.contract.poolings]
        runs = list(_runs([pooling for _, pooling in poolings], _RUN_CROPS))
        parts = []
        for rows, spans in runs:
            places = {ROWS: rows} | {axis: span for (axis, _), span in zip(poolings, spans, strict=True)}
            feed = {one.name: _part(request[one.name], one.shape, places) for one in self.contract.inputs}
            parts.append(self._session.run(names, feed))
        order = np.argsort(np.concatenate([rows for rows, _ in runs]))
        columns = zip(names, zip(*parts, strict=True), strict=True)
        output = {name: np.concatenate(of_runs)[order] for name, of_runs in columns}
        conform(output, self.contract.outputs, sizes)
        return output


def open_graph(
    model: Path, takes: Set[str], gives: Set[str], threads: int, gpu: int | None
) -> onnxruntime.InferenceSession:
    """Load an ONNX file with these inputs and outputs, to run as `Session` says. Raises TensorsError."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # A waiting thread of the pool must not take the cores of decoding, which runs beside it.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(model), options, providers=_providers(gpu))
    if gpu is not None and _CUDA not in session.get_providers():
        log.warning("the model runs on the CPU", gpu=gpu, reason=_why_not())
    for has, declared in ((session.get_inputs(), takes), (session.get_outputs(), gives)):
        names = {one.name for one in has}
        if names != declared:
            raise TensorsError(f"{model.name} has {', '.join(sorted(names))}, and its contract others")
    return session


def open_session(artifact: Artifact, threads: int, gpu: int | None = None) -> Session:
    """Load a release's graph. Raises TensorsError where it is not the one that its manifest declares."""
    return Session(artifact.folder / MODEL, artifact.manifest.contract, threads, gpu)


def _providers(gpu: int | None) -> list[str | tuple[str, dict[str, str]]]:
    """Return what is to compute a graph, the first that can."""
    if gpu is None or _CUDA not in onnxruntime.get_available_providers():
        return [_CPU]
    # CUDA's libraries, where they came as packages.
    onnxruntime.preload_dlls()
    # In whole float32, as the release was measured; and without a search for each number of crops that comes.
    own = {"device_id": str(gpu), "use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
    return [(_CUDA, own), _CPU]


def _why_not() -> str:
    if _CUDA in onnxruntime.get_available_providers():
        return (
            f"ONNX Runtime's {_CUDA} did not load: the lines before say which part of CUDA or cuDNN it lacks"
        )
    return f"onnxruntime {onnxruntime.__version__} has no {_CUDA}: onnxruntime-gpu in its place has it"


def _part(
    array: NDArray[Any], shape: Sequence[int | str], places: dict[int | str, list[int] | slice]
) -> NDArray[Any]:
    """Cut an array to the run's place on each of its open axes."""
    return np.ascontiguousarray(array[tuple(places.get(axis, slice(None)) for axis in shape)])


def _runs(poolings: Sequence[NDArray[np.float32]], most: int) -> Iterator[tuple[list[int], list[slice]]]:
    """Share the rows of all poolings (M, N of each view) out: rows, with their span of each view.

    No row of another run needs a row of these spans, as long as the views are in one order. A span has at
    most `most` rows, or more where rows that overlap need them.
    """
    used = [pooling != 0 for pooling in poolings]
    first = np.stack([one.argmax(1) for one in used])
    past = np.stack([one.shape[1] - one[:, ::-1].argmax(1) for one in used])
    rows: list[int] = []
    start = stop = np.zeros(len(poolings), int)
    for row in np.argsort(first[0], kind="stable"):
        if rows and (first[:, row] >= stop).all() and (past[:, row] > start + most).any():
            yield rows, [slice(*span) for span in zip(start, stop, strict=True)]
            rows = []
        start = np.minimum(start, first[:, row]) if rows else first[:, row]
        stop = np.maximum(stop, past[:, row]) if rows else past[:, row]
        rows.append(int(row))
    yield rows, [slice(*span) for span in zip(start, stop, strict=True)]

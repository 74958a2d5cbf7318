"""A release's graphs in this process, on ONNX Runtime."""

from collections.abc import Set
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Generic, TypeVar

import onnxruntime
import structlog

from detector.release.artifact import MODEL, Artifact
from detector.release.contract import Contract
from detector.release.tensors import GraphContract, ModelOutput, Request, TensorsError, conform

C = TypeVar("C", bound=GraphContract)

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

log = structlog.get_logger()


class DeadlineError(Exception):
    """A graph did not end in time, and was stopped."""


class Session(Generic[C]):
    """Answers requests by one graph of a release; pure, so the same input gives the same output."""

    def __init__(
        self, model: Path, contract: C, threads: int, gpu: int | None = None, deadline_s: float | None = None
    ) -> None:
        """Load an ONNX file that keeps this contract, to run on `threads` CPU threads.

        gpu: the number of the GPU to run on, if ONNX Runtime can; else it says in one line that it runs on
        the CPU. deadline_s: how long a request may take. Raises TensorsError where the file's inputs or
        outputs have other names.
        """
        self.contract, self._deadline_s = contract, deadline_s
        inputs = {spec.name for spec in contract.file_inputs}
        outputs = {spec.name for spec in contract.file_outputs}
        self._session = open_graph(model, inputs, outputs, threads, gpu)

    def score(self, request: Request) -> ModelOutput:
        """Answer a request. Raises TensorsError where it is not as the contract says, and DeadlineError."""
        sizes = conform(request, self.contract.inputs)
        if 0 in sizes.values():
            raise TensorsError(f"nothing to score: {sizes}")
        if self._deadline_s is None:
            output = self.contract.run_graph(self._session.run, request)
        else:
            output = self._run_with_deadline(request, self._deadline_s)
        conform(output, self.contract.outputs, sizes)
        return output

    def _run_with_deadline(self, request: Request, deadline_s: float) -> ModelOutput:
        options = onnxruntime.RunOptions()
        timer = Timer(deadline_s, setattr, (options, "terminate", True))  # ends it before its next operator
        timer.start()
        try:
            return self.contract.run_graph(partial(self._session.run, run_options=options), request)
        except Exception as error:
            if options.terminate:
                raise DeadlineError(f"the graph did not end within {deadline_s:g} s") from error
            raise
        finally:
            timer.cancel()


class ReleaseSession:
    """All graphs of a release, as TorchServe's worker has them, each for its own inputs."""

    def __init__(
        self, artifact: Artifact, threads: int, gpu: int | None = None, deadline_s: float | None = None
    ) -> None:
        """Load them. Raises TensorsError where one differs from the manifest's declaration."""
        self._artifact = artifact
        self._sessions = {
            graph: Session(artifact.folder / graph.model, contract, threads, gpu, deadline_s)
            for graph, contract in artifact.graphs.items()
        }

    def score(self, request: Request) -> ModelOutput:
        """Let the graph answer that takes arrays of these names. Raises TensorsError and DeadlineError."""
        return self._sessions[self._artifact.graph_for(request)].score(request)


def open_session(artifact: Artifact, threads: int, gpu: int | None = None) -> Session[Contract]:
    """Load a release's detector. Raises TensorsError where it is not the one that its manifest declares."""
    return Session(artifact.folder / MODEL, artifact.manifest.contract, threads, gpu)


def open_graph(
    model: Path, inputs: Set[str], outputs: Set[str], threads: int, gpu: int | None
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
    for arrays, declared in ((session.get_inputs(), inputs), (session.get_outputs(), outputs)):
        names = {array.name for array in arrays}
        if names != declared:
            raise TensorsError(f"{model.name} has {', '.join(sorted(names))}, and its contract others")
    return session


def _providers(gpu: int | None) -> list[str | tuple[str, dict[str, str]]]:
    """Return the execution providers of a graph, the first that can compute it first."""
    if gpu is None or _CUDA not in onnxruntime.get_available_providers():
        return [_CPU]
    # CUDA's libraries, where they came as packages.
    onnxruntime.preload_dlls()
    # In whole float32, as the release was measured; and without a search for each number of crops that comes.
    own = {"device_id": str(gpu), "use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
    return [(_CUDA, own), _CPU]


def _why_not() -> str:
    if _CUDA in onnxruntime.get_available_providers():
        return f"ONNX Runtime's {_CUDA} did not load: the lines before name what it lacks of CUDA or cuDNN"
    return f"onnxruntime {onnxruntime.__version__} has no {_CUDA}: onnxruntime-gpu in its place has it"

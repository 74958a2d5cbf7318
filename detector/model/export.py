"""A torch graph becomes an ONNX file with a contract, and is proven to say the same."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper
from torch import Tensor, nn

from detector.model.graph import DetectorGraph
from detector.release.contract import Contract, Input
from detector.release.crop_graphs import CropGraph
from detector.release.experts import LOGIT, PICTURES, CarriedExpert
from detector.release.tensors import (
    OPSET,
    ROWS,
    GraphContract,
    ModelOutput,
    Request,
    TensorSpec,
    beyond_tolerance,
    conform,
)
from detector.serving.session import Session

C = TypeVar("C", bound=CropGraph)


class ExportError(Exception):
    """The exported graph's output differs from the torch graph's. Fatal: this candidate is not served."""


def export(graph: nn.Module, inputs: Sequence[Input], path: Path) -> Contract:
    """Write the detector to path as ONNX of opset 18, its open axes left open; return its contract.

    graph: its forward takes the inputs by name, and gives arrays of one row for each of "rows" by name.

    What tracing could get wrong, a size or a branch frozen at the example's, prove_equal finds.
    """
    return Contract(inputs=tuple(inputs), outputs=write_onnx(graph, inputs, path))


def export_proven(graph: nn.Module, contract: C, path: Path, requests: Sequence[Request]) -> C:
    """Write a graph beside the detector to path, prove it; return its contract with the difference measured.

    Raises ValueError and ExportError as `prove_equal`, and ExportError unless it gives what is declared.
    """
    write_onnx(graph, contract.file_inputs, path, contract.file_outputs)
    worst = prove_equal(graph, path, contract, requests)
    return contract.model_copy(update={"export_difference": max(worst.values())})


def write_onnx(
    graph: nn.Module, inputs: Sequence[TensorSpec], path: Path, declared: Sequence[TensorSpec] | None = None
) -> tuple[TensorSpec, ...]:
    """Write the graph to path as `export` does; return its result.

    declared: what it must give, with the names of open axes; None: arrays that have "rows" first. Raises
    ExportError where it gives another array or another size.

    By the exporter that traces: it takes half a second where the one built on torch.export takes
    ten, and the two files are equally right and fast.
    """
    graph = graph.cpu().eval()
    example = _example(inputs)
    given = run(graph, example)
    axes = {spec.name: spec.shape[0] for spec in declared or ()}
    outputs = tuple(
        TensorSpec(name=name, dtype=str(value.dtype), shape=(axes.get(name, ROWS), *value.shape[1:]))
        for name, value in given.items()
    )
    if declared is not None and outputs != tuple(declared):
        raise ExportError(f"{path.name} gives {outputs}, declared is {tuple(declared)}")
    with warnings.catch_warnings():
        # It warns that it is not the default, and that sizes which are constant here are constants.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Positional(graph, list(example), list(given)),
            tuple(torch.from_numpy(array) for array in example.values()),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(example),
            output_names=list(given),
            dynamic_axes={
                spec.name: {place: axis for place, axis in enumerate(spec.shape) if isinstance(axis, str)}
                for spec in (*inputs, *outputs)
            },
        )
    return outputs


class _Positional(nn.Module):
    """The graph for a tracer that knows no names."""

    def __init__(self, graph: nn.Module, inputs: list[str], outputs: list[str]) -> None:
        super().__init__()
        self.graph, self.takes, self.gives = graph, inputs, outputs

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        given = self.graph(**dict(zip(self.takes, arrays, strict=True)))
        return tuple(given[name] for name in self.gives)


def _example(inputs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """Return arrays of the right kind, with 2 rows and 3 of every other open axis."""
    rng = np.random.default_rng(0)
    example: dict[str, NDArray[Any]] = {}
    for spec in inputs:
        shape = [size if isinstance(size, int) else 2 if size == ROWS else 3 for size in spec.shape]
        value = np.full(shape, 1 / 3, spec.dtype)
        example[spec.name] = rng.integers(0, 256, shape, np.uint8) if spec.dtype == "uint8" else value
    return example


def prove_equal(
    graph: nn.Module, path: Path, contract: GraphContract, requests: Sequence[Request]
) -> dict[str, float]:
    """Run both on every request; return how far apart they are in each output, as the contract measures it.

    Raises ValueError unless the requests have at least two sizes of each open axis, and one of them several
    values of each input of whole numbers, which say what belongs together; ExportError when an output is
    beyond the contract's tolerance.
    """
    sizes = [conform(request, contract.inputs) for request in requests]
    if not sizes or min(len({size[axis] for size in sizes}) for axis in sizes[0]) < 2:
        raise ValueError("a proof needs requests of several sizes of each open axis, in crops and in rows")
    for spec in contract.inputs:
        if spec.dtype == "int64" and all(len(np.unique(request[spec.name])) < 2 for request in requests):
            raise ValueError(f"a proof needs a request with several values of {spec.name}")
    session = Session(path, contract, threads=torch.get_num_threads())
    names = [spec.name for spec in contract.outputs]
    worst = contract.differences(
        _together([session.score(request) for request in requests], names),
        _together([run(graph, request) for request in requests], names),
    )
    if wrong := beyond_tolerance(worst, contract.tolerance):
        raise ExportError("the exported graph is not the torch graph: " + "; ".join(wrong))
    return worst


def _together(outputs: Sequence[ModelOutput], names: Sequence[str]) -> ModelOutput:
    return {name: np.concatenate([output[name] for output in outputs]) for name in names}


def run(graph: nn.Module, request: Request) -> ModelOutput:
    """The torch graph's own output for a request."""
    graph = graph.cpu().eval()
    with torch.inference_mode():
        output = graph(**{name: torch.from_numpy(array) for name, array in request.items()})
    return {name: value.numpy() for name, value in output.items()}


def export_with_experts(
    graph: DetectorGraph, inputs: Sequence[Input], experts: Mapping[str, Path], path: Path
) -> Contract:
    """Write a detector to path as `export` does, with its experts in the same file.

    experts: the ONNX file of each of the graph's experts, by name.
    """
    raw = [expert.raw for expert in graph.experts]
    outputs = write_onnx(graph, (*inputs, *raw), path)
    whole = onnx.load(str(path))
    given = {value.name for value in whole.graph.input}
    # The exporter leaves out what the graph does not read, such as pictures that an expert alone looks at.
    whole.graph.input.extend(
        helper.make_tensor_value_info(
            spec.name, helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), spec.shape
        )
        for spec in inputs
        if spec.name not in given
    )
    for expert in graph.experts:
        _put_in(whole, onnx.load(str(experts[expert.name])), expert)
    onnx.checker.check_model(whole)
    onnx.save(whole, str(path))
    return Contract(inputs=tuple(inputs), outputs=outputs)


def _put_in(whole: onnx.ModelProto, model: onnx.ModelProto, expert: CarriedExpert) -> None:
    """Put an expert's nodes before the detector's, in the place of the input of its logits."""
    name = expert.raw.name
    own = onnx.compose.add_prefix(model, f"{name}/").graph
    nodes = [
        helper.make_node("Identity", [expert.view], [f"{name}/{PICTURES}"]),
        *own.node,
        helper.make_node("Identity", [f"{name}/{LOGIT}"], [name]),
        *whole.graph.node,
    ]
    inputs = [value for value in whole.graph.input if value.name != name]
    for field, values in (("node", nodes), ("input", inputs)):
        del getattr(whole.graph, field)[:]
        getattr(whole.graph, field).extend(values)
    whole.graph.initializer.extend(own.initializer)


class WithExperts(nn.Module):
    """A detector's torch graph, asked as the exported one is: its experts' logits come of their own files."""

    def __init__(self, graph: DetectorGraph, experts: Mapping[str, Path]) -> None:
        super().__init__()
        self.graph = graph
        threads = torch.get_num_threads()
        self.sessions = {expert: Session(experts[expert.name], expert, threads) for expert in graph.experts}

    def forward(self, **request: Tensor) -> dict[str, Tensor]:
        """Score as `DetectorGraph.forward` does, of the same request without the logits."""
        logits = {
            expert.raw.name: torch.from_numpy(session.score({PICTURES: request[expert.view].numpy()})[LOGIT])
            for expert, session in self.sessions.items()
        }
        output: dict[str, Tensor] = self.graph(**request, **logits)
        return output

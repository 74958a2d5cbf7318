"""An ONNX file that a person brings, held to an expert's contract.

`python -m updater.experts.check` is the child that reads and runs it, with limits of memory and time. Of the
operators that it allows, none repeats, none draws at random, and no size follows from a picture: what a run
costs follows from the number of rows alone, which the child tries.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, TensorProto, shape_inference, version_converter

from detector.release.artifact import sha256_of
from detector.release.experts import LOGIT, PICTURES, ExpertContract
from detector.release.tensors import OPERATORS, OPSET, ROWS, ModelOutput, conform
from detector.serving.session import open_graph
from updater.limited_session import (
    MEMORY_BYTES,
    MOST_PIXELS,
    child_environment,
    limit_process,
    trial_pictures,
)

MAX_BYTES = 2**30
"""of a file: deploy takes none larger"""
PROCESSOR_S, WALL_S = 600, 1800
_EVERY_COUNT_S = 10.0
_FLAT_ROWS = 8
_LEAST_OPSET = 11
_KINDS = {int(TensorProto.UINT8): "uint8", int(TensorProto.FLOAT): "float32", int(TensorProto.INT64): "int64"}
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)

# By what their inputs of these places say, an operator's output has another size, or it fails.
_PLACES = {
    **dict.fromkeys(("Expand", "Reshape", "Squeeze", "Split", "Tile", "TopK", "Unsqueeze", "OneHot"), (1,)),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "CumSum"), (1,)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"), (1,)),
    **dict.fromkeys(("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"), (1,)),
    **{"ConstantOfShape": (0,), "Range": (0, 1, 2), "Slice": (1, 2, 3, 4), "Pad": (1, 3), "Trilu": (1,)},
    **{"Resize": (1, 2, 3), "DFT": (1,)},
}


class ExpertError(ValueError):
    """This cannot become an expert. Fatal. One line: the problem and the remedy."""


def check_expert(path: Path, contract: ExpertContract, target: Path) -> ExpertContract:
    """Write the file to target as today's opset; return its contract, with digest and checkpoint.

    Raises ExpertError.
    """
    try:
        require_small(path, path)
    except OSError as error:
        raise ExpertError(f"{path} cannot be read ({error.strerror or error})") from error
    command = [sys.executable, "-m", __name__, str(path), str(target), contract.model_dump_json()]
    try:
        child = subprocess.run(  # noqa: S603 - our own module
            command,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WALL_S,
            check=False,
        )
        ended = -child.returncode
    except subprocess.TimeoutExpired:
        ended = signal.SIGKILL
    if ended:
        raise ExpertError(
            f"{path} ended its check by {signal.Signals(ended).name if ended > 0 else 'an error'}: it has"
            f" {_memory(path) >> 20} MiB of memory and {PROCESSOR_S} s of processor time. Bring less"
        )
    if problem := json.loads(child.stdout):
        raise ExpertError(problem)
    described = f"{path.name} (SHA-256 {sha256_of(path)[:12]})"
    return contract.model_copy(update={"digest": sha256_of(target), "checkpoint": described})


def _memory(path: Path) -> int:
    return MEMORY_BYTES + 4 * path.stat().st_size


def main(path: Path, target: Path, contract: ExpertContract) -> None:
    """Be the child: print as JSON the file's problem, or null where it was written to target."""
    limit_process(_memory(path), MAX_BYTES, PROCESSOR_S)
    problem = None
    try:
        _write(path, target, contract)
        require_small(path, target)
        _answers(path, target, contract)
    except ExpertError as error:
        problem = str(error)
    print(json.dumps(problem))  # noqa: T201 - its answer


def _write(path: Path, target: Path, contract: ExpertContract) -> None:
    """Write the graph to target as today's opset. Raises ExpertError where it breaks the contract."""
    try:
        model = onnx.load(str(path), load_external_data=False)
        _require_plain(path, model)
        onnx.checker.check_model(model)
    except ExpertError:
        raise
    # protobuf's and the checker's own errors have no common class
    except Exception as error:
        raise ExpertError(f"{path} is no ONNX file ({' '.join(str(error).split())[:150]})") from error
    names = {value.name for value in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in names]
    types = [(value.name, value.type.tensor_type.elem_type) for value in (*inputs, *model.graph.output)]
    if types != [(PICTURES, TensorProto.UINT8), (LOGIT, TensorProto.FLOAT)]:
        tensors = ", ".join(_describe_value(value) for value in (*inputs, *model.graph.output))
        raise ExpertError(f"{path} has {tensors}; {_describe_contract(contract)}")
    model = _of_opset(path, model)
    _require_plain(path, model)
    _require_even(path, model)
    onnx.save(model, str(target))


def _describe_contract(contract: ExpertContract) -> str:
    picture, output = contract.inputs[0], contract.outputs[0]
    return f"an expert takes {PICTURES}: {picture}, and gives {LOGIT}: {output}, positive means fake"


def _require_plain(path: Path, model: onnx.ModelProto) -> None:
    """Raise ExpertError unless the graph is one list of allowed operators, with all weights inside."""
    nodes = model.graph.node
    foreign = {f"{node.domain}.{node.op_type}" for node in nodes if node.domain not in ("", "ai.onnx")}
    foreign |= {node.op_type for node in nodes if node.op_type not in OPERATORS}
    foreign |= {f"{node.op_type} with a graph inside" for node in nodes if _inside(node)}
    if foreign or model.functions:
        raise ExpertError(
            f"{path} has {', '.join(sorted(foreign)[:8]) or 'functions'}: only ONNX's own operators run,"
            " without loops, branches, random numbers and functions"
        )
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in _tensors(model.graph)):
        raise ExpertError(f"{path} keeps its weights in another file: export it with them inside")


def _inside(node: NodeProto) -> bool:
    return any(attr.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for attr in node.attribute)


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    attributes = [attr for node in graph.node for attr in node.attribute]
    for sparse in (*graph.sparse_initializer, *(attr.sparse_tensor for attr in attributes)):
        yield from (sparse.values, sparse.indices)
    for attribute in attributes:
        yield from (attribute.t, *attribute.tensors)


def _require_even(path: Path, model: onnx.ModelProto) -> None:
    """Raise ExpertError where a picture decides a size, a place or a divisor: a run may grow or fail."""
    inferred = shape_inference.infer_shapes(model).graph.value_info
    floats = {value.name for value in inferred if value.type.tensor_type.elem_type in _FLOATS}
    of_pictures = {PICTURES}
    for node in model.graph.node:
        deciding = [name for place, name in enumerate(node.input) if place in _PLACES.get(node.op_type, ())]
        if node.op_type in ("Div", "Mod"):  # a whole number that is divided by 0 ends the process
            deciding += [name for name in node.input if name not in floats]
        if of_pictures.intersection(deciding):
            raise ExpertError(
                f"{path} lets a picture decide a size, a place or a whole divisor of {node.op_type}: it must"
                " cost and answer alike for all pictures"
            )
        if node.op_type not in ("Shape", "Size") and of_pictures.intersection(node.input):
            of_pictures.update(node.output)


def _of_opset(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    version = next(opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx"))
    if not _LEAST_OPSET <= version <= OPSET:
        raise ExpertError(f"{path} is of opset {version}: export it with opset {OPSET}")
    try:
        return model if version == OPSET else version_converter.convert_version(model, OPSET)
    except Exception as error:  # it raises RuntimeError and its own, by operator
        why = " ".join(str(error).split())[:120]
        raise ExpertError(
            f"{path} of opset {version} cannot be brought to {OPSET} ({why}): export it so"
        ) from error


def _answers(path: Path, target: Path, contract: ExpertContract) -> None:
    """Ask it for each of 64 pictures alone, then for 1 to 64 of them together. Raises ExpertError."""
    rng = np.random.default_rng()  # which nobody can know before
    pictures = trial_pictures(contract.side_px, rng)
    try:
        session = open_graph(target, {PICTURES}, {LOGIT}, threads=1, gpu=None)

        def logits_of(some: NDArray[np.uint8]) -> ModelOutput:
            answer = {LOGIT: session.run([LOGIT], {PICTURES: some})[0]}
            conform(answer, contract.outputs, {ROWS: len(some)})
            return answer

        alone = np.concatenate([logits_of(picture[None])[LOGIT] for picture in pictures])
        require_finite(path, {LOGIT: alone})
        until = time.process_time() + _EVERY_COUNT_S
        for levels in rng.permutation(256).astype(np.uint8).reshape(-1, _FLAT_ROWS, 1, 1, 1):
            if time.process_time() < until:
                flat = np.broadcast_to(levels, (_FLAT_ROWS, *pictures.shape[1:]))
                require_finite(path, logits_of(np.ascontiguousarray(flat)))
        for count in _counts(min(len(pictures), MOST_PIXELS // contract.side_px**2)):
            some = rng.permutation(len(pictures))[:count]
            worst = contract.differences({LOGIT: alone[some]}, logits_of(pictures[some]))[LOGIT]
            if worst > contract.tolerance(LOGIT):
                raise ExpertError(
                    f"{path} answers otherwise ({worst:.2g}) as other pictures come beside: no row of"
                    f" {count} may change another"
                )
    except ExpertError:
        raise
    # ONNX Runtime's errors are of many classes
    except Exception as error:
        why = " ".join(str(error).split())[:150] or type(error).__name__
        raise ExpertError(
            f"{path} does not answer in {_memory(path) >> 20} MiB ({why}); {_describe_contract(contract)}"
        ) from error


def _counts(most: int) -> Iterator[int]:
    """Give numbers of rows: the least, some more and the most, then the others while there is time."""
    first = [count for count in (*range(1, 10), 16, most) if count <= most]
    yield from first
    until = time.process_time() + _EVERY_COUNT_S
    for count in range(most):
        if count not in (0, *first) and time.process_time() < until:
            yield count


def require_finite(named: Path, answer: ModelOutput) -> None:
    """Raise ExpertError where a logit is no number; named: the expert's own file."""
    if not np.isfinite(answer[LOGIT]).all():
        raise ExpertError(
            f"{named} answers NaN or infinity to noise, black, white or grey: mend it, or its preprocessing"
        )


def require_small(named: Path, graph: Path) -> None:
    """Raise ExpertError where an ONNX file is larger than deploy takes any."""
    if graph.stat().st_size > MAX_BYTES:
        raise ExpertError(f"{named} makes more than {MAX_BYTES >> 20} MiB, which no release carries")


def _describe_value(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type
    shape = ", ".join(str(size.dim_value or size.dim_param or "?") for size in kind.shape.dim)
    return f"{value.name}: {_KINDS.get(kind.elem_type, 'another type')} ({shape})"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), ExpertContract.model_validate_json(sys.argv[3]))

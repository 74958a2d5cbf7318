"""Named arrays: how a graph of a release declares them, how they travel, and when two results are equal.

Every array has a name, a dtype and a shape in which a number is a fixed size and a name is an open axis, of
the same size wherever that name stands. Requests and replies are safetensors, which nothing executes. A
further graph is a `GraphContract` in `crop_graphs.py`, a field of the manifest and a line in
`detector.release.artifact.GRAPHS`: session, export, proof, probe and requests are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from safetensors import SafetensorError
from safetensors.numpy import load, save

OPSET = 18
"""of ONNX, of every graph that a release has"""
_OPERATORS = """
Abs Add And ArgMax ArgMin AveragePool BatchNormalization Cast CastLike Ceil Celu Clip Concat Constant
ConstantOfShape Conv ConvTranspose Cos CumSum DFT DepthToSpace DequantizeLinear Div Einsum Elu Equal Erf Exp
Expand Flatten Floor Gather GatherElements GatherND Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool
Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization IsInf IsNaN
LRN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul Max MaxPool
Mean MeanVarianceNormalization Min Mish Mod Mul Neg Not OneHot Or PRelu Pad Pow QuantizeLinear Range
Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
ReduceSum ReduceSumSquare Relu Reshape Resize Round ScatterElements ScatterND Selu Shape Sigmoid Sign Sin
Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile
TopK Transpose Trilu Unsqueeze Where Xor
"""
OPERATORS = frozenset(_OPERATORS.split())
"""of ONNX, that a graph which others made may have: none repeats, and none draws at random"""
REQUEST_TYPE = "application/x-safetensors"

Request = Mapping[str, NDArray[Any]]
"""What a model is asked: the arrays that its contract takes, by name."""

ModelOutput = Mapping[str, NDArray[Any]]
"""What a model says: the arrays that its contract gives, by name; M rows each."""

MOST_CROPS = 256
"""Of one request and of one run of a graph, unless one item has more. A run of 128 px takes 4 MB a crop."""

_CLOSE, _FAR = 1e-3, 1e-2
_WITHOUT_TIES = frozenset({"cells", "frame_score", "logit"})
"""what the graphs beside the detector give, and experts"""
_CLOSE_OUTPUTS = frozenset({"logits", "pseudo_logit", "embedding", "features", "energy", *_WITHOUT_TIES})
_NETWORKS_OWN = _CLOSE_OUTPUTS - {"logits"}
"""what no neighbour has a say in; in older releases they have one in logits"""
_TIED, _TIED_SHARE = 0.5, 1 / 4


class TensorsError(ValueError):
    """The bytes, or the arrays, are not those that they should be. Fatal: the same ones stay wrong."""


def encode(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def decode(body: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a body, by name; `conform` says whether they are the right ones.

    Raises TensorsError.
    """
    try:
        arrays: dict[str, NDArray[Any]] = load(body)
    except SafetensorError as error:
        raise TensorsError(f"not safetensors: {error}") from error
    except KeyError as error:
        raise TensorsError(f"a type that numpy does not know: {error}") from error
    return arrays


def tolerance(name: str) -> float:
    """Largest |a - b| / (1 + |b|) of two runs of one network that still count as equal, of one output.

    Kernels sum in different orders (a trained net's logits were seen 2e-4 apart), and whitening enlarges
    what that does to a feature, and so to a distance. `differences` says what ties are allowed beyond that.
    """
    return _CLOSE if name in _CLOSE_OUTPUTS else _FAR


def differences(a: ModelOutput, b: ModelOutput) -> dict[str, float]:
    """The worst |a - b| / (1 + |b|) of each output of floating point in b.

    Infinite where a has it not, the shapes differ or a value is not finite. Whole numbers are left out:
    two exemplars at the same distance may change places, which their distances cover. Rounding also
    decides which of two at nearly the same distance is the last of the neighbours, and a score jumps with it
    (in five rows of 1,000, where features were moved by 1e-5 of themselves). So of outputs that neighbours
    have a say in, a quarter of the rows is left out, unless they are off by a half and more.
    """
    return {
        name: worst_difference(a.get(name), value, ties=name not in _NETWORKS_OWN)
        for name, value in b.items()
        if value.dtype.kind == "f"
    }


def beyond_tolerance(worst: Mapping[str, float], allowed: Callable[[str], float] = tolerance) -> list[str]:
    """One phrase for each output that is farther than is allowed of it; empty when all hold."""
    return [
        f"{name} differs by {value:.2g}, allowed {allowed(name):.2g}"
        for name, value in worst.items()
        if value > allowed(name)
    ]


def worst_difference(a: NDArray[Any] | None, b: NDArray[Any], *, ties: bool) -> float:
    """Return the worst |a - b| / (1 + |b|) of rows, without a quarter of them where ties are allowed."""
    if a is None or a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    rows = np.sort((np.abs(a - b) / (1 + np.abs(b))).reshape(len(b), -1).max(1, initial=0.0))
    if not len(rows):
        return 0.0
    tied = int(len(rows) * _TIED_SHARE) if ties and rows[-1] <= _TIED else 0
    return float(rows[len(rows) - 1 - tied])


ROWS = "rows"
CROPS = "crops"

Size = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]

Run = Callable[[Sequence[str], Mapping[str, NDArray[Any]]], list[NDArray[Any]]]
"""One run of an ONNX file: the names of the outputs that are wanted, and its inputs → those outputs."""


class TensorSpec(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """One array by name."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    dtype: Literal["uint8", "float32", "int64"]
    shape: tuple[Size, ...] = Field(description="a number is fixed, a name is an open axis")

    def __str__(self) -> str:
        return f"{self.dtype} ({', '.join(map(str, self.shape))})"


class GraphContract(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """The declaration of one graph of a release; each kind has its `inputs`, `outputs` and `answered`."""

    if TYPE_CHECKING:  # pydantic takes no field in the place of a property

        @property
        def inputs(self) -> Sequence[TensorSpec]:
            """The arrays of a request."""
            raise NotImplementedError

        @property
        def outputs(self) -> Sequence[TensorSpec]:
            """The arrays of an answer, by rows."""
            raise NotImplementedError

    @property
    def file_inputs(self) -> Sequence[TensorSpec]:
        """The inputs of one run of the ONNX file."""
        return self.inputs

    @property
    def file_outputs(self) -> Sequence[TensorSpec]:
        """The outputs of one run of the ONNX file."""
        return self.outputs

    def run_graph(self, run: Run, request: Request) -> ModelOutput:
        """Answer a request by runs of the file; the request is as `inputs` say, and has rows."""
        raise NotImplementedError

    def differences(self, a: ModelOutput, b: ModelOutput) -> dict[str, float]:
        """Return how far apart two answers are, as `detector.release.tensors.differences` says."""
        return differences(a, b)

    def tolerance(self, name: str) -> float:
        """Return the largest difference of an output with which two answers count as equal."""
        return tolerance(name)


def conform(
    arrays: Mapping[str, NDArray[Any]], specs: Sequence[TensorSpec], sizes: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the size of every open axis. Raises TensorsError unless the arrays are those, and no others.

    sizes: of open axes that have one already.
    """
    open_axes = dict(sizes or {})
    names = {spec.name for spec in specs}
    if arrays.keys() != names:
        expected, got = (", ".join(sorted(some)) for some in (names, arrays))
        raise TensorsError(f"expected {expected}; got {got or 'nothing'}")
    for spec in specs:
        array = arrays[spec.name]
        fits = array.dtype == spec.dtype and array.ndim == len(spec.shape)
        for size, length in zip(spec.shape, array.shape, strict=False):
            fits = fits and length == (open_axes.setdefault(size, length) if isinstance(size, str) else size)
        if not fits:
            sizes_so_far = ", ".join(f"{name} {size}" for name, size in open_axes.items())
            given = f"{array.dtype} {array.shape}"
            raise TensorsError(f"{spec.name} is {given}, this model has {spec} with {sizes_so_far}")
    return open_axes


def write_probe(path: Path, request: Request, expected: ModelOutput) -> None:
    """Keep a small request with the exported graph's output: asked before a release scores."""
    path.write_bytes(encode({**request, **expected}))


def read_probe(path: Path, contract: GraphContract) -> tuple[Request, ModelOutput]:
    """Return the request and the answer expected of it. Raises TensorsError for other arrays."""
    arrays = decode(path.read_bytes())
    names = {spec.name for spec in contract.inputs}
    request = {name: array for name, array in arrays.items() if name in names}
    expected = {name: array for name, array in arrays.items() if name not in names}
    conform(expected, contract.outputs, conform(request, contract.inputs))
    return request, expected

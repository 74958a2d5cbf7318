"""Named arrays: how they travel as bytes, and when two results are equal.

Requests and replies are safetensors: named, typed and shaped arrays that nothing executes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

REQUEST_TYPE = "application/x-safetensors"

Request = Mapping[str, NDArray[Any]]
"""What a model is asked: the arrays that its contract takes, by name."""

ModelOutput = Mapping[str, NDArray[Any]]
"""What a model says: the arrays that its contract gives, by name; M rows each."""

_CLOSE, _FAR = 1e-3, 1e-2
_CLOSE_OUTPUTS = frozenset({"logits", "pseudo_logit", "embedding", "features", "energy"})
_NETWORKS_OWN = _CLOSE_OUTPUTS - {"logits"}
"""what no neighbour has a say in; logits are told with an item's surroundings"""
_TIED, _TIED_SHARE = 0.5, 1 / 4


class TensorsError(ValueError):
    """The bytes, or the arrays, are not those that they should be. Fatal: the same ones stay wrong."""


def encode(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays by name as one body."""
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def decode(body: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a body, by name; detector.release.graph_contract says whether they are the right ones.

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
        name: _worst(a.get(name), value, ties=name not in _NETWORKS_OWN)
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


def _worst(a: NDArray[Any] | None, b: NDArray[Any], *, ties: bool) -> float:
    if a is None or a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    rows = np.sort((np.abs(a - b) / (1 + np.abs(b))).reshape(len(b), -1).max(1, initial=0.0))
    if not len(rows):
        return 0.0
    tied = int(len(rows) * _TIED_SHARE) if ties and rows[-1] <= _TIED else 0
    return float(rows[len(rows) - 1 - tied])

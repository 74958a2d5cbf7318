"""The one function that fuses the gate's scores: calibration, the exported graph and benchmarks call it."""

from collections.abc import Mapping
from functools import reduce
from operator import add

from torch import Tensor

from detector.release.gate import GateParameters


def fused(scores: Mapping[str, Tensor], gate: GateParameters) -> Tensor:
    """Return the sum of the gate's terms, float32 [M]: weight * clip((s - median) / scale).

    An unknown score is this less the level around the item (`detector/model/surroundings.py`).

    scores: float32 [M] of every term of the gate, by its name; more are left alone. Raises KeyError where
    one is missing.
    """
    terms = (
        term.weight * ((scores[name] - term.median) / term.scale).clamp(-gate.clip, gate.clip)
        for name, term in gate.terms.items()
    )
    return reduce(add, terms)

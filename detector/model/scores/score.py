"""What a network says, and what a score of the gate is: a function of that which exports to ONNX."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from detector.release.reference import Reference


class NetworkOutput(NamedTuple):
    """What the network says of M pools of crops, over K known classes (class 0 is real)."""

    logits: Tensor
    """float32 [M, K]"""
    pseudo_logit: Tensor
    """float32 [M]: the class of forgeries of no known family"""
    embedding: Tensor
    """float32 [M, D]: what the head reads"""
    features: Tensor
    """float32 [M, F]: the raw forensic features, pooled; F is 0 where the architecture has none"""


Score = Callable[[NetworkOutput], Tensor]
"""The scores of M rows, float32 [M]; higher means less familiar. Pure torch, on the CPU."""

Fit = Callable[[Reference | None], Score | None]
"""Makes a score from the reference set, or None where it needs one and there is none. Raises ValueError
where the set is too small."""

Own = Callable[[Reference], Tensor]
"""The scores of the reference set's own rows, each among all others, float32 [R]."""

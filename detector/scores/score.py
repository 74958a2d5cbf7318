"""What a score of the gate is: a function of a network's output that exports to ONNX."""

from collections.abc import Callable

from torch import Tensor

from detector.network import NetworkOutput
from detector.reference import Reference

Score = Callable[[NetworkOutput], Tensor]
"""The scores of M rows, float32 [M]; higher means less familiar. Pure torch, on the CPU."""

Fit = Callable[[Reference | None], Score | None]
"""Makes a score from the reference set, or None where it needs one and there is none. Raises ValueError
where the set is too small."""

Own = Callable[[Reference], Tensor]
"""The scores of the reference set's own rows, each among all others, float32 [R]."""

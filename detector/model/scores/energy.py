"""Energy: the free energy of the logits.

s(x) = E(x) = -T * log sum_c exp(f(x)_c / T), in nats, with f the logits of the known classes. Liu et al.
2020, "Energy-based out-of-distribution detection", eq. 4; T = 1 there and in the gate.

pytorch-ood's EnergyBased agrees with it and with the paper.
"""

import torch
from torch import Tensor

from detector.model.scores.score import Score
from detector.release.reference import Reference


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the energy of each row of logits [M, K], [M]."""
    return -temperature * torch.logsumexp(logits / temperature, dim=-1)


def fit(_reference: Reference | None) -> Score:
    """Nothing is fitted."""
    return lambda output: energy(output.logits)

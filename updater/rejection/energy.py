"""Energy: the free energy of the logits.

s(x) = E(x) = -T * log sum_c exp(f(x)_c / T), in nats. Liu et al. 2020, "Energy-based out-of-distribution
detection", eq. 4; T = 1 there.

It is the gate's own function (detector/scores.py), so that the project has one energy; pytorch-ood's
EnergyBased agrees with it and with the paper.
"""

from detector.scores import energy
from updater.rejection.evidence import Known, Score, checked, float64


def fit(known: Known, *, temperature: float = 1.0) -> Score:
    """Nothing is fitted."""
    return checked(known, lambda evidence: energy(float64(evidence.logits), temperature))

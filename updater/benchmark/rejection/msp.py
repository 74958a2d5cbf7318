"""MSP: the largest softmax probability.

s(x) = -max_c softmax(f(x) / T)_c, in [-1, -1/K]. Hendrycks and Gimpel 2017, "A baseline for detecting
misclassified and out-of-distribution examples in neural networks", section 3; T = 1 there.

pytorch-ood's MaxSoftmax agrees with the paper, sign turned.
"""

from pytorch_ood.detector import MaxSoftmax

from updater.benchmark.rejection.evidence import Known, Score, checked, float64


def fit(known: Known, *, temperature: float = 1.0) -> Score:
    """Nothing is fitted."""
    return checked(known, lambda evidence: MaxSoftmax.score(float64(evidence.logits), temperature))
